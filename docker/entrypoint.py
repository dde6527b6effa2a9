"""Entry point of the trainer's container: starts or resumes the run that TARGET, DATA, NAME and TRAIN_ARGS describe.

Docker restarts the container after a crash, a reboot or an update, always with the same arguments, so the runs folder decides: a
run with a checkpoint is resumed; one that ended before its first checkpoint stays as it is, and NAME-try2 starts; one that has
finished is left alone. With arguments (`docker compose run --rm trainer evaluate …`) it is `python -m trainer`.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

RUNS = Path("/runs")
DEMO = "demo"
SERVE = (
    *("--watch.host", "0.0.0.0", "--watch.token-file", "/keys/token", "--watch.allow-hosts", "trainer"),
    *("--watch.linger-seconds", "30", "--watch.console", "plain"),
)


def arguments(environment: Mapping[str, str], runs: Path) -> list[str] | str:
    """The arguments of `python -m trainer`, or a sentence if there is nothing left to do."""
    target, data = environment.get("TARGET") or DEMO, environment.get("DATA") or DEMO
    name = newest(environment.get("NAME") or name_for(target), runs)
    folder = runs / name
    if is_finished(folder):
        return f"Run {name!r} has finished. Set NAME to start another; docs/operations.md says how to export or evaluate this one."
    start = ["--name", name]
    if has_checkpoint(folder):
        start = ["--resume", name]
    elif folder.exists():
        start = ["--name", next_name(name)]
    options = ["--config", "trainer/demo/config.toml"] if data == DEMO else []
    options += ["--target", target, "--data", DEMO if data == DEMO else "/data"]
    return ["train", *options, "--runs", str(runs), *start, *SERVE, *shlex.split(environment.get("TRAIN_ARGS", ""))]


def name_for(target: str) -> str:
    """`Qwen/Qwen3-8B` → `Qwen3-8B`, short enough for `-try2`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", target.rstrip("/").rpartition("/")[2]).strip("-.")[:56] or "run"


def newest(name: str, runs: Path) -> str:
    """The last of NAME, NAME-try2, NAME-try3 … that exists; NAME if none does."""
    while (runs / next_name(name)).exists():
        name = next_name(name)
    return name


def next_name(name: str) -> str:
    """`demo` → `demo-try2` → `demo-try3`."""
    match = re.fullmatch(r"(.+)-try(\d+)", name)
    return f"{match[1]}-try{int(match[2]) + 1}" if match else f"{name}-try2"


def has_checkpoint(folder: Path) -> bool:
    """Whether there is one to resume from: its manifest is written last, then its folder is renamed. The trainer verifies it."""
    return any(path.parent.suffix == "" for path in (folder / "checkpoints").glob("step-*/manifest.json"))


def is_finished(folder: Path) -> bool:
    """Whether the run's last event is that it reached its end; a run that was stopped has another message."""
    try:
        lines = (folder / "events.jsonl").read_bytes().splitlines()
    except OSError:
        return False
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:  # torn by a crash
            continue
        if event.get("event") in ("finished", "failed", "started", "resumed"):
            return event["event"] == "finished" and str(event.get("message")).startswith("Finished ")
    return False


def main() -> None:
    command = sys.argv[1:] or arguments(os.environ, RUNS)
    if isinstance(command, str):
        print(command)
        return
    print("python -m trainer", shlex.join(command), flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "trainer", *command])


if __name__ == "__main__":
    main()
