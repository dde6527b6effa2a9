"""The commands: `python -m trainer train …`, `prepare …`, `evaluate …` and `export …`.

Exit codes: 0 done, or stopped cleanly by Ctrl-C; 1 the run failed; 2 the request cannot work, and nothing was made; 130 Ctrl-C
before the run began, or a second one.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from trainer.errors import EXIT_INTERRUPTED, ConfigError

USAGE = """usage: python -m trainer COMMAND [options]

  train     train a drafter for a target
  prepare   make conversations to train on: the target answers your prompts
  evaluate  decode with a trained drafter: acceptance length, speed-up, losslessness
  export    write a trained drafter as a folder that z-lab's package, SGLang and vLLM load

python -m trainer COMMAND --help lists the options.
"""

EXIT_FAILED, EXIT_UNUSABLE = 1, 2


def main(words: list[str]) -> int:
    command = COMMANDS.get(words[0] if words else "")
    if command is None:
        asked_for_help = words[:1] in (["--help"], ["-h"])
        print(USAGE, end="", file=sys.stdout if asked_for_help else sys.stderr)
        return 0 if asked_for_help else EXIT_UNUSABLE
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # to stderr, until the run's console takes over
    logging.getLogger("trainer").setLevel(logging.INFO)
    try:
        return command(words[1:])
    except ConfigError as error:
        print(f"{words[0]}: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:  # before there is a run to stop cleanly
        return EXIT_INTERRUPTED


def run_train(words: list[str]) -> int:
    # Each command imports what it needs: torch and transformers take seconds.
    from trainer.cli import read_train_config

    config = read_train_config(words)
    from trainer.train import train
    from trainer.watch import RunFailedError

    try:
        train(config, ["python", "-m", "trainer", "train", *words])
    except RunFailedError:
        return EXIT_FAILED  # the console and the log already have it, with its traceback
    return 0


def run_prepare(words: list[str]) -> int:
    from trainer.cli import parse
    from trainer.prepare.command import PrepareConfig, prepare

    prepare(parse(PrepareConfig, "prepare", words))
    return 0


def run_evaluate(words: list[str]) -> int:
    from trainer.cli import parse
    from trainer.evaluate.command import evaluate
    from trainer.evaluate.plan import EvaluateOptions

    lossless = evaluate(parse(EvaluateOptions, "evaluate", words))
    return 0 if lossless else EXIT_FAILED


def run_export(words: list[str]) -> int:
    from trainer.cli import parse
    from trainer.formats.export import ExportConfig, UnequalError, export

    config = parse(ExportConfig, "export", words)
    try:
        output = export(config, ["python", "-m", "trainer", "export", *words])
    except UnequalError as error:
        print(f"export: {error}; no folder was made", file=sys.stderr)
        return EXIT_FAILED
    print(f"{'An UNTRAINED drafter' if config.dry_run else 'The drafter'} is in {output}; its README.md says how to serve it.")
    return 0


def end(code: int) -> None:
    """End the process even if threads are left: during Python's own shutdown they could crash in native code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it is gone
            stream.flush()
    if threading.active_count() > 1:
        os._exit(code)
    sys.exit(code)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": run_train,
    "prepare": run_prepare,
    "evaluate": run_evaluate,
    "export": run_export,
}


def prepare_streams() -> None:
    """Make stdin, stdout and stderr usable whatever the caller left of them.

    A supervisor may have closed one: the next file to be opened would get its number, and prints would go into it. A terminal may
    lack a character: it is then shown as `?`, rather than a result lost at its last line.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115, it lives as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    prepare_streams()
    end(main(sys.argv[1:]))
