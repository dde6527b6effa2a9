"""One conversation, followed from the dataset to a pixel: through real processes, a real Prometheus check and a real browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import httpx
import pytest
import torch
from playwright.sync_api import Browser, Page

from tests.metrics.test_exposition import OF_AN_EVALUATION
from tests.support.scraped import faults, told
from tests.support.sources import ROOT
from trainer.config import DrafterConfig, LossConfig
from trainer.data.batches import pack
from trainer.data.chat_template import Chat
from trainer.data.samples import Tokeniser, Visits
from trainer.drafter.anchors import build_blocks, draw_anchors, generator_for
from trainer.drafter.loss import drafter_loss
from trainer.drafter.model import Drafter, choose_layer_ids, drafter_architecture
from trainer.metrics.catalogue.index import CATALOGUE
from trainer.target.features import FeatureBatch, borrow_weights
from trainer.target.load import Target
from trainer.target.mask_token import find_mask_token_id

ANSWER = "one two three four five six seven eight nine ten eleven twelve"
CONVERSATION = {"messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": ANSWER}]}
DRAFTER = DrafterConfig(block_size=8, layers=2, anchors=24)
STEPS = 4000  # more than it gets to: the test ends the run
FLAGS = f"""--target tiny --seed 3 --dataset.max-length 256 --batches.token-budget 256 --batches.epochs 100000 --max-steps {STEPS}
    --drafter.block-size 8 --drafter.layers 2 --drafter.anchors 24 --watch.port 0 --watch.sample-seconds 0.25 --cpu-threads 1"""
START_SECONDS = 90


class Process:
    """A part of Draftscope as its user starts it; `address` is the first one that it prints."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: list[str] = []
        self.address = self._find_address()

    def _find_address(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            if found := re.search(r"http://[\w.]+:\d+", line):
                return found.group()
        raise AssertionError(f"no address was printed: {''.join(self._lines)}")

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C; returns the exit code and all that was printed."""
        self._process.send_signal(2)
        rest, _ = self._process.communicate(timeout=30)
        return self._process.returncode, "".join(self._lines) + rest

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("road")
    datasets.Dataset.from_list([CONVERSATION]).save_to_disk(folder / "data")
    return folder


@pytest.fixture(scope="module")
def trainer(folder: Path) -> Iterator[Process]:
    process = Process(
        "trainer", "train", "--data", str(folder / "data"), "--runs", str(folder / "runs"), "--name", "road", *FLAGS.split()
    )
    yield process
    process.kill()


@pytest.fixture(scope="module")
def dashboard(folder: Path, trainer: Process) -> Iterator[Process]:
    process = Process("dashboard", "--runs", str(folder / "runs"), "--port", "0")
    yield process
    process.kill()


def steps_of(folder: Path) -> list[dict[str, Any]]:
    whole = (folder / "runs" / "road" / "steps.jsonl").read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def eventually(what: str, look: Any, seconds: float = START_SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
        except (httpx.HTTPError, FileNotFoundError, KeyError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come within {seconds:g} s")


@pytest.fixture(scope="module")
def learning(folder: Path, trainer: Process) -> Process:
    eventually("ten steps", lambda: len(steps_of(folder)) >= 10)
    return trainer


def scraped(trainer: Process) -> dict[str, float]:
    lines = httpx.get(f"{trainer.address}/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


def test_the_first_loss_is_the_conversations_own(folder: Path, learning: Process) -> None:
    """Made again here from the conversation by the model's own `output_hidden_states`, without the pipeline."""
    tokenizer, config = Target.find("tiny").tokenizer, Target.find("tiny").config
    model = Target.find("tiny").load(torch.float32, "cpu")
    visits = Visits(datasets.load_from_disk(folder / "data"), seed=3, epochs=100)
    samples = list(islice(Tokeniser(Chat(tokenizer, max_length=256), lambda *_: None)(iter(visits)), 10))
    assert tokenizer.decode(samples[0].token_ids[samples[0].loss_mask]).startswith(ANSWER)
    batch = next(pack(iter(samples), token_budget=256))
    documents = [batch.token_T[batch.document_T == number] for number in range(batch.samples)]

    ids = choose_layer_ids(config.num_hidden_layers, DRAFTER)
    torch.manual_seed(3)
    drafter = Drafter(drafter_architecture(config, DRAFTER, ids, find_mask_token_id(config, tokenizer)))
    with torch.no_grad():
        hidden = [model(document[None], output_hidden_states=True).hidden_states for document in documents]
        features = FeatureBatch(batch, torch.cat([torch.cat([states[layer + 1][0] for layer in ids], dim=-1) for states in hidden]))
        blocks = build_blocks(batch, *draw_anchors(batch, DRAFTER.anchors, generator_for(3, 0)), DRAFTER.block_size)
        sums = drafter_loss(drafter, borrow_weights(model, torch.device("cpu")), features, blocks, LossConfig())
    first = steps_of(folder)[0]
    assert first["loss"] == pytest.approx(float(sums.loss_sum / sums.weight), rel=1e-5)
    assert first["context_tokens"] == batch.tokens
    assert first["draft_tokens"] == DRAFTER.anchors * DRAFTER.block_size


def test_metrics_and_status_say_what_the_record_says(folder: Path, learning: Process) -> None:
    numbers = scraped(learning)
    status = httpx.get(f"{learning.address}/status").json()
    steps = {
        line["step"]: line
        for line in eventually("the step", lambda: [*steps_of(folder)][status["step"] - 1 :] and steps_of(folder))
    }
    scraped_step = steps[int(numbers['draftscope_global_step{run_id="road"}'])]
    assert numbers['draftscope_loss{run_id="road"}'] == pytest.approx(scraped_step["loss"])
    assert numbers['draftscope_tokens_total{kind="context",run_id="road"}'] == scraped_step["context_tokens"]
    assert numbers['draftscope_tokens_total{kind="draft",run_id="road"}'] == scraped_step["draft_tokens"]
    assert status["loss"] == pytest.approx(steps[status["step"]]["loss"])
    assert status["acceptance"]["estimated_length"] == pytest.approx(steps[status["step"]]["estimated_acceptance_length"], abs=1e-3)
    for stage in status["stages"]:
        shares = stage["busy_ratio"] + stage["waiting_input_ratio"] + stage["waiting_output_ratio"]
        assert shares == pytest.approx(1, abs=0.01), stage


def with_a_pace(text: str) -> str:
    """The scrape, once it tells when the run will be done: after the first telemetry tick that saw a step."""
    return text if "\ndraftscope_remaining_seconds " in text else ""


def test_a_scrape_is_the_catalogue_and_nothing_else(learning: Process) -> None:
    text = eventually("a pace", lambda: with_a_pace(httpx.get(f"{learning.address}/metrics").text))
    assert faults(text) == []
    not_here = {metric.name for metric in CATALOGUE if {"gpu", "tracker"} & set(metric.labels)}  # no GPU, no tracker,
    not_here |= OF_AN_EVALUATION  # and nothing held out to evaluate on
    assert {metric.name for metric in CATALOGUE} - told(text) - not_here == set()


def test_prometheus_own_tool_accepts_the_scrape(learning: Process, promtool: str) -> None:
    scrape = httpx.get(f"{learning.address}/metrics")
    checked = subprocess.run([promtool, "check", "metrics"], input=scrape.text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert len(scraped(learning)) <= 300


@pytest.fixture
def page(browser: Browser, dashboard: Process) -> Iterator[tuple[Page, list[str], list[str]]]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{dashboard.address}/runs/road")
    yield page, asked, complaints
    page.close()


def points(tab: Page) -> list[tuple[float, float | None]]:
    """What Plotly draws in the chart of the loss."""
    found = tab.evaluate(
        """() => [...document.querySelectorAll('#chart-loss .js-plotly-plot')]
            .flatMap(plot => plot.data).flatMap(trace => [...trace.x ?? []].map((x, i) => [Number(x), trace.y[i]]))"""
    )
    return [(x, y) for x, y in found]


def newest_step(tab: Page) -> float:
    return max((x for x, y in points(tab) if y is not None), default=0.0)


@pytest.mark.browser
def test_the_loss_arrives_in_the_browser_as_pixels(
    folder: Path, learning: Process, dashboard: Process, page: tuple[Page, list[str], list[str]]
) -> None:
    tab, asked, complaints = page
    first = eventually("a drawn step", lambda: newest_step(tab) > 5 and newest_step(tab), 20)
    assert eventually("a later step, without a reload", lambda: newest_step(tab) > first, 20)
    drawn = points(tab)
    loss_at = {line["step"]: line["loss"] for line in steps_of(folder)}
    # Buckets hold several steps once there are many; the first steps are drawn as they are.
    assert any(loss_at.get(int(x)) == pytest.approx(y, rel=1e-3) for x, y in drawn if y is not None)
    line = tab.locator("#chart-loss path.js-line").first.bounding_box()
    assert line is not None
    assert line["width"] > 200
    assert tab.locator("#verdict").inner_text().strip()
    assert all(url.startswith((dashboard.address, "data:", "blob:")) for url in asked), asked
    assert complaints == []


def test_ctrl_c_ends_it_with_a_checkpoint(folder: Path, learning: Process, dashboard: Process) -> None:
    """Last, since it ends the run that the others look at."""
    code, printed = learning.interrupt()
    assert code == 0, printed
    latest = (folder / "runs" / "road" / "checkpoints" / "latest").read_text().strip()
    assert int(latest.removeprefix("step-")) == steps_of(folder)[-1]["step"]
    assert "Traceback" not in printed
    assert steps_of(folder)[-1]["loss"] < 0.7 * steps_of(folder)[0]["loss"]
    code, printed = dashboard.interrupt()
    assert code == 0, printed
