"""The Chromium of this machine, driven by Playwright: where it is, and how tests start it."""

import shutil
import subprocess
from functools import cache

from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
HOW_TO_GET = "apt-get install chromium; on Ubuntu: snap install chromium"
# It talks to the test's server and to nobody else.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find() -> str | None:
    """The first on the PATH that runs; tests/setup/tools.sh looks the same way."""
    return next((path for path in map(shutil.which, NAMES) if path and runs(path)), None)


@cache
def runs(path: str) -> bool:
    """Whether there is a browser behind the name: Ubuntu's chromium-browser only says that there is a snap."""
    try:
        subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def launch(playwright: Playwright, path: str) -> Browser:
    """Headless, with an empty profile."""
    return playwright.chromium.launch(executable_path=path, args=list(FLAGS))
