"""docker-compose.yml, as Compose itself reads it, held against what an operator would ask of it. No engine is needed."""

import functools
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.sources import ROOT

ALWAYS = {"keys", "dashboard", "prometheus", "grafana"}
ALERTING = {"alertmanager", "webhook"}
COMBINATIONS = {
    "": {*ALWAYS, "trainer"},
    "cpu": {*ALWAYS, "trainer"},
    "gpu": {*ALWAYS, "trainer-gpu"},
    "cpu,alerting": {*ALWAYS, *ALERTING, "trainer"},
    "gpu,alerting": {*ALWAYS, *ALERTING, "trainer-gpu"},
    "alerting": {*ALWAYS, *ALERTING},
}
SERVICES = ("keys", "trainer", "trainer-gpu", "dashboard", "prometheus", "grafana", "alertmanager", "webhook")
SERVERS = tuple(name for name in SERVICES if name != "keys")  # which ends at once
NO_CALL_HOME = {
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    "GF_ANALYTICS_FEEDBACK_LINKS_ENABLED": "false",
    "GF_NEWS_NEWS_FEED_ENABLED": "false",
    "GF_PLUGINS_PREINSTALL_DISABLED": "true",
    "GF_PLUGINS_PREINSTALL_AUTO_UPDATE": "false",
    "GF_PLUGINS_PUBLIC_KEY_RETRIEVAL_DISABLED": "true",
    "GF_SNAPSHOTS_EXTERNAL_ENABLED": "false",
    "GF_SECURITY_DISABLE_GRAVATAR": "true",
}
Json = dict[str, Any]


@functools.cache
def config(profiles: str = "", *files: str, **set_to: str) -> Json:
    """What Compose makes of the files with these --profile, and these variables beside .env."""
    docker = shutil.which("docker")
    if not docker or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("no docker with Compose on this machine (their command line is enough)")
    command = [docker, "compose", "--project-directory", str(ROOT)]
    for file in ("docker-compose.yml", *files):
        command += ["-f", str(ROOT / file)]
    for profile in filter(None, profiles.split(",")):
        command += ["--profile", profile]
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    told = subprocess.run(
        [*command, "config", "--format", "json"], env={**environment, **set_to}, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert told.stderr == "", "a warning of Compose is a mistake of ours"
    read: Json = json.loads(told.stdout)
    return read


def service(name: str) -> Json:
    found: Json = config("*")["services"][name]
    return found


def seconds(duration: str) -> float:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([hms])", duration))


def test_each_combination_of_profiles_has_what_it_names_and_never_two_trainers() -> None:
    assert {profiles: set(config(profiles)["services"]) for profiles in COMBINATIONS} == COMBINATIONS


def test_the_environment_can_choose_the_profiles_too() -> None:
    assert set(config(COMPOSE_PROFILES="gpu,alerting")["services"]) == COMBINATIONS["gpu,alerting"]


def test_a_compose_of_2023_can_read_it() -> None:
    for file in ("docker-compose.yml", "docker/host-trainer.yml"):
        assert not re.findall(r"!override|!reset|^    (?:extends|gpus|models):|^include:", (ROOT / file).read_text(), re.MULTILINE)


def test_no_service_is_left_untested() -> None:
    assert set(config("*")["services"]) == set(SERVICES)


def test_every_service_keeps_the_rules() -> None:
    assert set(config("*")["services"]) == set(SERVICES)
    assert [f"{name}: {fault}" for name in SERVICES for fault in faults(name, service(name))] == []


def faults(name: str, found: Json) -> Iterator[str]:
    """Where a service can be changed from inside, grows without bound, is open to the network, or cannot be waited for."""
    yield from escapes(found)
    yield from unbounded(name, found)
    if not re.fullmatch(r"[\w/-]+:v?\d+\.\d+(\.\d+|-slim-bookworm)", found["image"]):
        yield f"image {found['image']} is not pinned"
    if [port["host_ip"] for port in found.get("ports", [])] != ["127.0.0.1"] * (name not in ("keys", "webhook")):
        yield "ports beyond this machine"
    for waited_for, how in found.get("depends_on", {}).items():
        if how["condition"] != ("service_completed_successfully" if waited_for == "keys" else "service_healthy"):
            yield f"does not wait until {waited_for} is ready"
    check = found.get("healthcheck", {})
    if name in SERVERS and not {"test", "interval", "timeout", "retries", "start_period", "start_interval"} <= set(check):
        yield "no whole healthcheck"
    elif name in SERVERS and seconds(check["timeout"]) >= seconds(check["interval"]):
        yield "its healthcheck takes longer than its interval"


def escapes(found: Json) -> Iterator[str]:
    hardened = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"], "init": True}
    for setting, wanted in hardened.items():
        if found.get(setting) != wanted:
            yield f"{setting} is {found.get(setting)}"
    if int(found["user"].partition(":")[0]) < 400:
        yield "a user that may be root"  # by number, whatever the image calls it
    if more := {"privileged", "cap_add", "pid", "ipc", "devices"} & set(found):
        yield f"has {more}"
    if found.get("network_mode", "none") != "none":
        yield "the network of the machine"


def unbounded(name: str, found: Json) -> Iterator[str]:
    if not 0 < int(found["mem_limit"]) <= 96 * 2**30:
        yield "memory"
    least = 1024 if name in SERVERS and name != "webhook" else 1  # Go, torch and numpy start a thread for each core, or more
    if not least <= found["pids_limit"] <= 4096:
        yield f"{found['pids_limit']} processes and threads"
    if found["logging"] != {"driver": "json-file", "options": {"max-file": "3", "max-size": "10m"}}:
        yield "logs"
    if not all("size=" in place for place in found.get("tmpfs", [])):
        yield "tmpfs"


def test_a_broken_rule_is_found() -> None:
    good = service("prometheus")
    breaks: dict[str, Json] = {
        "read_only": {"read_only": False},
        "root": {"user": "0:0"},
        "privileged": {"privileged": True},
        "not pinned": {"image": "prom/prometheus:latest"},
        "ports": {"ports": [{"host_ip": "0.0.0.0", "target": 9090}]},
        "memory": {"mem_limit": "0"},
        "processes": {"pids_limit": 100},
        "healthcheck": {"healthcheck": {}},
    }
    assert {
        words: [fault for fault in faults("prometheus", good | change) if words in fault] != [] for words, change in breaks.items()
    } == (dict.fromkeys(breaks, True))


def test_an_image_of_ours_is_built_here_and_never_fetched_by_its_name_which_may_be_anybodys() -> None:
    assert {name: service(name).get("pull_policy") for name in SERVICES} == {
        name: "never" if "build" in service(name) else None for name in SERVICES
    }


def test_our_images_carry_our_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    ours = {service(name)["image"] for name in SERVICES if "build" in service(name)}
    assert ours == {f"draftscope/trainer:{version}", f"draftscope/dashboard:{version}"}


def test_our_images_stand_on_a_pinned_one_and_run_as_somebody() -> None:
    for file in ("trainer.Dockerfile", "dashboard.Dockerfile"):
        text = (ROOT / "docker" / file).read_text()
        assert re.findall(r"^FROM (.+)$", text, re.MULTILINE) == ["python:3.11-slim-bookworm"], file
        assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["10001:10001"], file
        assert "VOLUME" not in text, f"{file}: a container that mounts nothing there leaves a nameless volume behind"
        installs = [line for line in text.splitlines() if "pip install" in line]
        assert installs, file
        assert all("--only-binary :all:" in line for line in installs), f"{file}: there is no compiler"


def test_a_link_in_an_alert_leads_to_where_it_is_published() -> None:
    services = config("*", PROMETHEUS_PORT="1909", ALERTMANAGER_PORT="1909")["services"]
    for name in ("prometheus", "alertmanager"):
        assert services[name]["ports"][0]["published"] == "1909"
        assert "--web.external-url=http://127.0.0.1:1909/" in services[name]["command"]


def test_a_stop_leaves_time_for_a_checkpoint_and_a_crash_is_not_repeated_for_ever() -> None:
    assert seconds(service("trainer")["stop_grace_period"]) >= 300
    assert seconds(service("trainer-gpu")["stop_grace_period"]) >= 900
    assert {service(name)["restart"] for name in ("trainer", "trainer-gpu")} == {"on-failure:3"}
    assert {service(name)["restart"] for name in SERVERS if not name.startswith("trainer")} == {"unless-stopped"}


def test_what_is_mounted_is_there_whole_and_cannot_be_written() -> None:
    mounts = [(name, mount) for name in SERVICES for mount in service(name).get("volumes", [])]
    assert {mount["source"] for _, mount in mounts if mount["type"] != "bind"} <= set(config("*")["volumes"])
    for name, mount in mounts:
        if mount["type"] == "bind":
            source = Path(mount["source"])
            assert source.is_dir(), f"{name}: {source} is no folder; a mounted file stays the old one when an editor replaces it"
            assert any(source.iterdir()), f"{name}: {source} is empty"
            assert mount["read_only"] is True, f"{name} may write to {source}"


def test_what_lasts_is_in_named_volumes_and_only_its_owner_writes_there() -> None:
    writers: dict[str, set[str]] = {}
    for name in SERVICES:
        for mount in service(name).get("volumes", []):
            if mount["type"] == "volume" and not mount.get("read_only"):
                writers.setdefault(mount["source"], set()).add(name)
    trainers = {"trainer", "trainer-gpu"}
    assert writers == {
        "runs": trainers,
        "cache": trainers,
        "targets": trainers,
        "prometheus": {"prometheus"},
        "grafana": {"grafana"},
        "alertmanager": {"alertmanager"},
        "trainer-keys": {"keys"},
        "grafana-keys": {"keys"},
    }


def test_a_secret_is_a_file_and_reaches_only_whom_it_is_for() -> None:
    secrets = {name: Path(secret["file"]) for name, secret in config()["secrets"].items()}
    assert {path.read_bytes() for path in secrets.values()} == {b""}, "by default there are none"
    assert {name: {secret["source"] for secret in service(name).get("secrets", [])} for name in SERVICES} == {
        "keys": {"trainer_token", "grafana_password"},
        **{name: {"hf_token"} for name in ("trainer", "trainer-gpu")},
        **{name: set() for name in SERVERS if not name.startswith("trainer")},
    }
    for name in SERVICES:
        for variable, value in service(name).get("environment", {}).items():
            if re.search(r"TOKEN|PASSWORD|SECRET|KEY", variable) and variable not in NO_CALL_HOME:
                assert value.startswith(("/run/secrets/", "/keys/")), f"{variable} holds a secret itself"
    keys = {name: {m["source"] for m in service(name).get("volumes", []) if m["target"].startswith("/keys")} for name in SERVERS}
    assert keys["grafana"] == {"grafana-keys"}
    assert keys["trainer"] == keys["trainer-gpu"] == {"trainer-keys"}
    assert keys["dashboard"] == keys["prometheus"] == keys["alertmanager"] == keys["webhook"] == set()


def test_grafana_lets_everyone_look_nobody_change_and_calls_nobody() -> None:
    environment = service("grafana")["environment"]
    assert NO_CALL_HOME.items() <= environment.items()
    assert (environment["GF_AUTH_ANONYMOUS_ENABLED"], environment["GF_AUTH_ANONYMOUS_ORG_ROLE"]) == ("true", "Viewer")
    assert {environment[f"GF_{name}"] for name in ("USERS_ALLOW_SIGN_UP", "SNAPSHOTS_ENABLED", "PLUGINS_PLUGIN_ADMIN_ENABLED")} == {
        "false"
    }
    assert environment["GF_SERVER_ENFORCE_DOMAIN"] == "true"
    assert environment["GF_SERVER_ROOT_URL"] == "http://localhost:3000/"


def test_grafana_finds_what_it_is_given() -> None:
    targets = {mount["target"]: mount["source"] for mount in service("grafana")["volumes"]}
    provisioning = "/etc/grafana/provisioning/"
    assert {name.removeprefix(provisioning): source for name, source in targets.items() if name.startswith(provisioning)} == {
        folder.name: str(folder) for folder in (ROOT / "grafana" / "provisioning").iterdir()
    }
    home = service("grafana")["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(targets["/etc/grafana/dashboards"], Path(home).name).is_file()
    (provider,) = yaml.safe_load(next((ROOT / "grafana/provisioning/dashboards").glob("*.y*ml")).read_text())["providers"]
    assert provider["options"]["path"] in targets
    (source,) = yaml.safe_load(next((ROOT / "grafana/provisioning/datasources").glob("*.y*ml")).read_text())["datasources"]
    assert source["url"] == f"http://prometheus:{service('prometheus')['ports'][0]['target']}"
    assert set(service("grafana")["networks"]) & set(service("prometheus")["networks"])


def test_who_can_reach_whom() -> None:
    networks = {name: set(service(name).get("networks") or {}) for name in SERVERS}
    assert networks["trainer"] & networks["prometheus"]
    assert networks["alertmanager"] & networks["prometheus"]
    assert networks["alertmanager"] & networks["webhook"]
    for other in ("grafana", "dashboard", "alertmanager", "webhook"):
        assert not networks["trainer"] & networks[other], f"{other} has no business with the trainer's controls"


def test_both_trainers_are_one_but_for_their_devices() -> None:
    cpu, gpu = service("trainer"), service("trainer-gpu")
    told_apart = {"profiles", "deploy", "environment", "mem_limit", "stop_grace_period"}
    assert {name for name in {*cpu, *gpu} if cpu.get(name) != gpu.get(name)} == told_apart
    assert gpu["environment"] == cpu["environment"] | {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    assert gpu["deploy"]["resources"]["reservations"]["devices"] == [{"capabilities": ["gpu"], "count": -1, "driver": "nvidia"}]
    assert [found["networks"]["scrape"]["aliases"] for found in (cpu, gpu)] == [["trainer"]] * 2


def test_prometheus_asks_the_trainer_where_it_listens_and_loads_every_rule() -> None:
    settings = yaml.safe_load((ROOT / "docker/prometheus/prometheus.yml").read_text())
    targets = {mount["target"]: Path(mount["source"]) for mount in service("prometheus")["volumes"] if mount["type"] == "bind"}
    (job,) = [job for job in settings["scrape_configs"] if job["job_name"] == "draftscope"]
    by_hand, announced = job["file_sd_configs"][0]["files"]
    (group,) = yaml.safe_load((targets["/etc/prometheus"] / "targets" / "trainer.yml").read_text())
    assert group == {"targets": [f"trainer:{service('trainer')['ports'][0]['target']}"]}
    assert by_hand == "/etc/prometheus/targets/*.yml"
    assert Path(announced).parent.as_posix() in {mount["target"] for mount in service("prometheus")["volumes"]}
    assert {"sample_limit", "label_limit", "target_limit", "body_size_limit"} <= set(job)
    assert settings["rule_files"] == ["/etc/draftscope/rules/*.yml"]
    assert list(targets["/etc/draftscope/rules"].glob("*.yml"))
    flags = service("prometheus")["command"]
    assert not [flag for flag in flags if "lifecycle" in flag or "admin-api" in flag]
    assert {"--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"} <= set(flags)


def test_promtool_takes_the_configuration(promtool: str, tmp_path: Path) -> None:
    text = (ROOT / "docker/prometheus/prometheus.yml").read_text().replace("/etc/draftscope/rules", str(ROOT / "grafana/rules"))
    (tmp_path / "prometheus.yml").write_text(text)
    checked = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_promtool_takes_what_the_docs_say_for_a_prometheus_of_ones_own(promtool: str, tmp_path: Path) -> None:
    (snippet,) = re.findall(r"```yaml\n(scrape_configs:.+?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(snippet.replace("/etc/draftscope/rules", str(ROOT / "grafana/rules")))
    checked = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    settings = yaml.safe_load(snippet)
    assert settings["scrape_configs"][0]["job_name"] == "draftscope", "as rules and dashboards call it"


def test_data_models_and_announcements_can_be_folders_of_this_machine(tmp_path: Path) -> None:
    found = config(DATA=str(tmp_path), MODELS="./trainer", TARGETS=str(tmp_path))["services"]
    mounts = {mount["target"]: mount for mount in found["trainer"]["volumes"]}
    assert (mounts["/data"]["source"], mounts["/models"]["source"]) == (str(tmp_path), str(ROOT / "trainer"))
    assert mounts["/data"]["read_only"] is mounts["/models"]["read_only"] is True
    assert {mount["target"]: mount["source"] for mount in found["prometheus"]["volumes"]}["/targets"] == str(tmp_path)


def test_a_trainer_on_the_machine_itself_takes_the_containers_place() -> None:
    found = config("", "docker/host-trainer.yml")["services"]
    mounts = {mount["target"]: Path(mount["source"]) for mount in found["prometheus"]["volumes"]}
    (group,) = yaml.safe_load((mounts["/etc/prometheus/targets"] / "trainer.yml").read_text())
    assert group == {"targets": ["host.docker.internal:9400"]}
    assert found["prometheus"]["extra_hosts"] == ["host.docker.internal=host-gateway"]
    assert [mount["source"] for mount in found["dashboard"]["volumes"]] == [str(ROOT / "runs")]


def test_everything_that_can_be_set_is_in_the_file_of_settings() -> None:
    text = "".join((ROOT / file).read_text() for file in ("docker-compose.yml", "docker/host-trainer.yml"))
    used = set(re.findall(r"\$\{(\w+)", text))
    listed = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env").read_text(), re.MULTILINE))
    assert used | {"COMPOSE_PROFILES"} == listed
