"""`make screenshot`: runs the demo for some minutes and takes the README's picture of its dashboard, live, in a real browser."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.support import chromium
from tests.support.sources import ROOT

PICTURE = ROOT / "docs" / "screenshot.png"
WIDTH, MOST_HEIGHT, MARGIN = 1280, 1200, 16


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.screenshot", description=__doc__)
    parser.add_argument("--minutes", type=float, default=6.0, help="minutes that the demo trains first (default: 6)")
    parser.add_argument("--url", help="take the picture of this page instead, at once")
    parser.add_argument("--output", type=Path, default=PICTURE, help="where the picture goes (default: docs/screenshot.png)")
    args = parser.parse_args()
    path = chromium.find()
    if path is None:
        print(f"No Chromium on this machine; install it ({chromium.HOW_TO_GET}).", file=sys.stderr)
        return 2
    if args.url:
        take(path, args.url, args.output)
        return 0
    with tempfile.TemporaryDirectory() as runs:
        return of_demo(path, runs, args.minutes, args.output)


def of_demo(chromium_path: str, runs: str, minutes: float, output: Path) -> int:
    dashboard, status = free_ports(2)
    env = {"PYTHON": sys.executable, "RUNS": runs, "DASHBOARD_PORT": str(dashboard), "STATUS_PORT": str(status)}
    demo = subprocess.Popen(
        ["sh", "trainer/demo/run.sh", "--name", "demo"], cwd=ROOT, env=os.environ | env, stdin=subprocess.DEVNULL
    )
    try:
        demo.wait(timeout=minutes * 60)
    except subprocess.TimeoutExpired:
        take(chromium_path, f"http://127.0.0.1:{dashboard}/", output)
    else:
        print(f"The demo ended before its {minutes:g} minutes were over, with status {demo.returncode}.", file=sys.stderr)
        return 1
    finally:
        demo.send_signal(signal.SIGTERM)
        demo.wait()
    return 0


def free_ports(count: int) -> list[int]:
    """That many different ports of the loopback interface that nobody listens on just now."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def take(chromium_path: str, url: str, output: Path) -> None:
    with sync_playwright() as playwright:
        browser = chromium.launch(playwright, chromium_path)
        page = browser.new_page(viewport={"width": WIDTH, "height": MOST_HEIGHT})
        page.goto(url)
        settle(page)
        page.screenshot(path=output, clip={"x": 0, "y": 0, "width": WIDTH, "height": height(page)})
        browser.close()
    print(f"{output}: {output.stat().st_size / 1000:.0f} kB")


def settle(page: Page) -> None:
    """Wait until charts are drawn and the first live ticks have come."""
    page.locator(".js-plotly-plot .trace").nth(2).wait_for(state="attached")
    time.sleep(5)


def height(page: Page) -> float:
    """Where to cut: below the last row of charts that is whole."""
    boxes = [box for chart in page.locator("#charts > *").all() if (box := chart.bounding_box())]
    bottoms = [box["y"] + box["height"] + MARGIN for box in boxes]
    return max((bottom for bottom in bottoms if bottom <= MOST_HEIGHT), default=MOST_HEIGHT)


if __name__ == "__main__":
    sys.exit(main())
