"""What a run was made with: versions of libraries, and the commit of the code."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import tomllib
from pathlib import Path

LIBRARIES = ("torch", "transformers", "datasets", "prometheus-client", "fastapi")


def versions() -> dict[str, str]:
    """Versions of Draftscope, Python and LIBRARIES, by name."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    found = {"draftscope": project["version"], "python": platform.python_version()}
    for library in LIBRARIES:
        found[library] = importlib.metadata.version(library)
    return found


def git_commit() -> str | None:
    """The commit of the code: of the git checkout, or the one that an image was built from; None where neither is known."""
    if built_from := os.environ.get("DRAFTSCOPE_COMMIT"):
        return built_from
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
