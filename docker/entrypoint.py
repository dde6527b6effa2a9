"""The trainer's container: TARGET, DATA, NAME and TRAIN_ARGS in, a run begun or gone on with.

A container is started again after a crash, a reboot or an update, always with the same words, so it looks for itself: a run with
a whole checkpoint goes on from it; one that ended before its first checkpoint is left as it is, and NAME-try2 begins; one that
has reached its end is left alone. With words of its own (`docker compose run --rm trainer evaluate …`) it is `python -m trainer`.
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


def words(environment: Mapping[str, str], runs: Path) -> list[str] | str:
    """What follows `python -m trainer`, or a sentence where there is nothing left to do."""
    target, data = environment.get("TARGET") or DEMO, environment.get("DATA") or DEMO
    name = newest(environment.get("NAME") or name_for(target), runs)
    folder = runs / name
    if is_finished(folder):
        return f"Run {name!r} has reached its end. For a new one set NAME; to export or evaluate this one, see docs/operations.md."
    begin = ["--name", name]
    if has_checkpoint(folder):
        begin = ["--resume", name]
    elif folder.exists():
        begin = ["--name", following(name)]
    chosen = ["--config", "trainer/demo/config.toml"] if data == DEMO else []
    chosen += ["--target", target, "--data", DEMO if data == DEMO else "/data"]
    return ["train", *chosen, "--runs", str(runs), *begin, *SERVE, *shlex.split(environment.get("TRAIN_ARGS", ""))]


def name_for(target: str) -> str:
    """`Qwen/Qwen3-8B` → `Qwen3-8B`: room is left for a number behind it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", target.rstrip("/").rpartition("/")[2]).strip("-.")[:56] or "run"


def newest(name: str, runs: Path) -> str:
    """The last of NAME, NAME-try2, NAME-try3 … that is there; NAME where none is."""
    while (runs / following(name)).exists():
        name = following(name)
    return name


def following(name: str) -> str:
    """`demo` → `demo-try2` → `demo-try3`."""
    match = re.fullmatch(r"(.+)-try(\d+)", name)
    return f"{match[1]}-try{int(match[2]) + 1}" if match else f"{name}-try2"


def has_checkpoint(folder: Path) -> bool:
    """A checkpoint's manifest is written last, and its folder named after that; the trainer itself checks that it is whole."""
    return any(path.parent.suffix == "" for path in (folder / "checkpoints").glob("step-*/manifest.json"))


def is_finished(folder: Path) -> bool:
    """Whether the last thing the run's record tells is that it reached its end; a run that was stopped says so in other words."""
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
    asked = sys.argv[1:] or words(os.environ, RUNS)
    if isinstance(asked, str):
        print(asked)
        return
    print("python -m trainer", shlex.join(asked), flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "trainer", *asked])


if __name__ == "__main__":
    main()
