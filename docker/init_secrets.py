"""Writes a key file for each service that needs one: the operator's secret, or a random one.

Runs before the services at each `docker compose up`. A random secret is made once and lives as long as its volume. No secret is
printed.
"""

import os
import secrets
import sys
from pathlib import Path

GIVEN = Path("/run/secrets")
KEYS = Path("/keys")


def provide(given: Path, key: Path, mode: int) -> str:
    """Make `key` hold the secret in `given`, or else a random one; returns what was done, for the log. Raises `OSError`."""
    wanted = given.read_text(encoding="utf-8").strip() if given.exists() else ""
    present = key.read_text(encoding="utf-8").strip() if key.exists() else ""
    if present and wanted in ("", present):
        return f"{key} is kept"
    partial = key.with_name(f".{key.name}.tmp")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write((wanted or secrets.token_urlsafe(32)) + "\n")
        os.fchmod(file.fileno(), mode)
    partial.replace(key)
    return f"{key} is {'the one given' if wanted else 'new, and random'}"


def main() -> int:
    try:
        print(provide(GIVEN / "trainer_token", KEYS / "trainer" / "token", 0o600))
        # Grafana runs as another user, in group 0.
        print(provide(GIVEN / "grafana_password", KEYS / "grafana" / "password", 0o640))
    except (OSError, UnicodeDecodeError) as error:
        print(f"keys: {error}. A file with a secret must be text, readable for user {os.getuid()}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
