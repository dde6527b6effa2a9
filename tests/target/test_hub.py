"""trainer/target/load.py with a hub: a command asks for whatever it needs of a target once."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import constants
from rich.console import Console

from tests.support.fake_hub import FakeHub
from tests.support.made_runs import make_run
from trainer.config import EvaluateConfig, TrainConfig
from trainer.evaluate.command import evaluate
from trainer.evaluate.plan import EvaluateOptions
from trainer.formats.export import ExportConfig, export
from trainer.prepare.command import PrepareConfig, prepare
from trainer.run.preflight import check
from trainer.target.load import Target
from trainer.target.tiny import tiny_model, tiny_tokenizer

REPO = "somebody/tiny-chat"
QUIET = Console(quiet=True)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    hub = FakeHub(REPO, tmp_path / "model")
    with hub.serving():
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
        yield hub


def train_start(folder: Path) -> None:
    """What `train` reads of the target: all of preflight, and the weights for two devices."""
    cpu = {"target_devices": ("cpu",), "drafter_device": "cpu"}
    plan = check(TrainConfig(target=REPO, data="demo", evaluate=EvaluateConfig(every=0), **cpu))  # type: ignore[arg-type]
    for _ in range(2):
        plan.target.load(torch.float32, "cpu")


def prepare_all(folder: Path) -> None:
    prepare(
        PrepareConfig(target=REPO, prompts="stdlib", output=str(folder / "out"), limit=2, max_new_tokens=9, keep_unfinished=True),
        QUIET,
    )


def evaluate_all(folder: Path) -> None:
    make_run(folder / "runs", "a")
    options = {"target": REPO, "runs": str(folder / "runs"), "limit": 1, "max_new_tokens": 8}
    evaluate(EvaluateOptions(checkpoint="a", prompts="stdlib", **options), QUIET, QUIET)  # type: ignore[arg-type]


def export_all(folder: Path) -> None:
    export(ExportConfig(target=REPO, dry_run=True, output=str(folder / "out"), format="speculators"))


@pytest.mark.parametrize("command", [train_start, prepare_all, evaluate_all, export_all])
def test_a_command_asks_the_hub_once_for_each_file(hub: FakeHub, tmp_path: Path, command: Callable[[Path], None]) -> None:
    """Also where nothing is in the cache yet: `HEAD` and `GET` of each file, listings of the repository included."""
    command(tmp_path)
    assert {request: times for request, times in hub.requests.items() if times > 1} == {}
    assert hub.requests["HEAD /resolve/main/config.json"] == 1


def test_a_folder_that_changed_is_read_anew(tmp_path: Path) -> None:
    """Nothing outlives the `Target`: the process may find another model under the same name later."""
    tiny_model().save_pretrained(tmp_path)
    before = Target.find(str(tmp_path))
    assert before.description.hidden_size == 64
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"hidden_size": 64', '"hidden_size": 128'))
    assert Target.find(str(tmp_path)).description.hidden_size == 128
    assert before.description.hidden_size == 64, "one command sees one model"
