"""What tests share: a port, a browser, Prometheus' own programs; and a guard against threads that outlive their test."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support import chromium

# Set before any library is imported: a hub that is asked for by mistake answers at once instead of after its time-outs.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Suites run beside each other on small machines; torch takes its number of threads from here when it is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TOOLS = Path(__file__).parent.parent / ".tools" / "usr" / "bin"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole files, the one with the longest test first: a worker that came to it last would keep everybody waiting."""
    longest: dict[Path, float] = {}
    for item in items:
        slow = item.get_closest_marker("slow")
        seconds = slow.kwargs.get("seconds", 10.0) if slow else 0.0
        longest[item.path] = max(seconds, longest.get(item.path, 0.0))
    items.sort(key=lambda item: -longest[item.path])


@pytest.fixture
def free_port() -> int:
    """A port of the loopback interface that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def chromium_path() -> str:
    return chromium.find() or pytest.skip(f"no Chromium on this machine ({chromium.HOW_TO_GET})")


@pytest.fixture(scope="session")
def browser(chromium_path: str) -> Iterator[Browser]:
    """Headless Chromium with an empty profile; take a page of your own: `browser.new_page()`."""
    with sync_playwright() as playwright:
        browser = chromium.launch(playwright, chromium_path)
        yield browser
        browser.close()


def program(name: str) -> str:
    found = shutil.which(name, path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    return found or pytest.skip(f"no {name} on this machine (apt-get install prometheus, or: sh tests/setup/tools.sh .tools)")


@pytest.fixture(scope="session")
def promtool() -> str:
    return program("promtool")


@pytest.fixture(scope="session")
def prometheus_binary() -> str:
    return program("prometheus")


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread running which would keep its process from ending."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 2
    while (left := leftover(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    if left:
        pytest.fail(f"threads left behind: {', '.join(thread.name for thread in left)}")


def leftover(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
