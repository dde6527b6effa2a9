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

TESTS = Path(__file__).parent
TOOLS = TESTS.parent / ".tools" / "usr" / "bin"


# Seconds that the longest files take on a quiet machine; those of a `slow` test are in its marker.
SECONDS = {
    "tests/system/test_page.py": 45,
    "tests/grafana/test_queries.py": 40,
    "tests/trackers/test_supervisor.py": 20,
    "tests/system/test_road.py": 20,
    "tests/decoding/test_generate.py": 20,
    "tests/system/test_train_control.py": 18,
    "tests/evaluate/test_command.py": 17,
    "tests/drafter/test_learner.py": 17,
    "tests/system/test_train.py": 15,
    "tests/prepare/test_command.py": 14,
    "tests/decoding/test_speculative_sampled.py": 12,
    "tests/system/test_demo_run.py": 11,
    "tests/decoding/test_sampling.py": 10,
    "tests/trackers/test_main.py": 10,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: a worker that comes to one last keeps all others waiting."""
    longest = {TESTS.parent / file: float(seconds) for file, seconds in SECONDS.items()}
    for item in items:
        if slow := item.get_closest_marker("slow"):
            longest[item.path] = max(slow.kwargs.get("seconds", 10.0), longest.get(item.path, 0.0))
    items.sort(key=lambda item: -longest.get(item.path, 0.0))


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


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator[Browser]:
    """Headless Chromium with an empty profile; take a page of your own: `browser.new_page()`.

    For one module: Playwright leaves an event loop running and a process beside it, which tests after it would find.
    """
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
