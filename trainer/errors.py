"""Errors of configuration, as sentences with the value and the way out, and how flags are named in them."""

from __future__ import annotations

EXIT_INTERRUPTED = 130


class ConfigError(Exception):
    """The user's input cannot work; the message is one sentence with the value and the way out. The command exits with 2.

    Not a `ValueError`: tyro catches those, and would report that a class cannot be constructed.
    """


def require(condition: bool, name: str, limit: str, value: object) -> None:
    """Raise `ConfigError` naming the flag of the field `name`, its limit and the value given, if any, unless `condition` holds."""
    if not condition:
        got = "" if value is None else f", got {value!r}"
        raise ConfigError(f"{flag_of(name)} must be {limit}{got}")


def flag_of(name: str) -> str:
    """A field as it is written on the command line: `drafter.block_size` is `--drafter.block-size`."""
    return f"--{name.replace('_', '-')}"
