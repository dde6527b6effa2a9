"""trainer/build.py: weights once per device, a drafter that only the seed decides, and a ring that never runs out."""

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.small import lay_out
from tests.support.threads import eventually
from trainer.build import load
from trainer.config import BatchesConfig, DatasetConfig, DrafterConfig, LossConfig, QueuesConfig, TrainConfig
from trainer.data.batches import TokenBatch
from trainer.drafter.learner import Learner
from trainer.errors import ConfigError
from trainer.pipeline.queues import OrderedQueue
from trainer.pipeline.stages import Stages
from trainer.run.preflight import Plan, check
from trainer.target import features as targets
from trainer.target.features import FeatureBatch, FeatureExtractor
from trainer.target.load import Target

SLOTS = 2
CONFIG = TrainConfig(
    target="tiny",
    data="demo",
    target_devices=("cpu", "cpu", "cpu"),
    drafter_device="cpu",
    dataset=DatasetConfig(max_length=128),
    batches=BatchesConfig(token_budget=128),
    drafter=DrafterConfig(block_size=4, layers=1, anchors=4, target_layers=2),
    queues=QueuesConfig(features=SLOTS),
)


class FakeMonitor:
    exporter = None

    def __init__(self) -> None:
        self.phases: list[str] = []

    def enter_phase(self, phase: str) -> None:
        self.phases.append(phase)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return check(CONFIG)


def loaded(plan: Plan) -> tuple[Learner, list[FeatureExtractor]]:
    monitor: Any = FakeMonitor()
    learner, target, _ = load(plan, monitor)
    return learner, target


def batch_of(seq: int, *lengths: int) -> TokenBatch:
    batch = lay_out(lengths or (8,), seq=seq)
    return replace(batch, token_T=32 + batch.token_T % 95)


def test_threads_on_one_device_share_its_weights(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    whole = Target.load

    def counted(*arguments: Any) -> Any:
        models.append(whole(*arguments))
        return models[-1]

    monkeypatch.setattr(Target, "load", counted)
    learner, copies = loaded(plan)
    (model,) = models
    assert len(copies) == 3
    assert len({id(copy) for copy in copies}) == 1
    assert learner._target.head_VD.data_ptr() == model.lm_head.weight.data_ptr(), "the drafter borrows them too"


def test_what_is_loaded_can_learn(plan: Plan) -> None:
    learner, copies = loaded(plan)
    (features,) = copies[0].extract(iter([batch_of(0, 100, 28)]))
    assert features.feature_TF.shape == (128, 2 * 64), "the longest batch fits into a slot"
    result = learner.learn(features)
    assert result is not None
    assert result.skipped == ""


def test_to_learn_from_the_targets_own_distribution_its_last_hidden_state_comes_along(plan: Plan) -> None:
    learner, copies = loaded(replace(plan, config=replace(plan.config, loss=LossConfig(objective="distillation"))))
    (features,) = copies[0].extract(iter([batch_of(0, 100, 28)]))
    assert features.last_TD is not None
    assert features.last_TD.shape == (128, 64)
    result = learner.learn(features)
    assert result is not None
    assert result.skipped == ""


def test_only_the_seed_decides_the_first_weights(plan: Plan) -> None:
    def first_weights(seed: int, noise: int) -> torch.Tensor:
        torch.manual_seed(noise)
        learner, _ = loaded(replace(plan, config=replace(plan.config, seed=seed)))
        return learner.drafter.fc.weight.detach()

    assert torch.equal(first_weights(0, noise=1), first_weights(0, noise=2))
    assert not torch.equal(first_weights(0, noise=1), first_weights(1, noise=1))


def test_it_says_what_it_does(plan: Plan) -> None:
    monitor: Any = FakeMonitor()
    load(plan, monitor)
    assert monitor.phases == ["loading the target", "making the drafter", "waiting for the first features"]


def test_a_target_that_cannot_be_read_fails_the_run_by_then(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise ConfigError("the weights of target 'tiny' cannot be read")

    monkeypatch.setattr(Target, "load", gone)
    with pytest.raises(RuntimeError, match=r"^the weights of target 'tiny' cannot be read$") as failed:
        loaded(plan)
    assert isinstance(failed.value.__cause__, ConfigError)


def test_the_ring_has_a_slot_for_everybody_at_the_worst_moment(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter holds batch 0; batch 1 is slow; later ones fill the queue, and then it is 1's turn, which passes the bound."""
    entered: list[int] = []
    gate = threading.Event()

    def run(_: FeatureExtractor, batch: TokenBatch, __: torch.Tensor) -> None:
        entered.append(batch.seq)
        if batch.seq == 1:
            gate.wait(10)

    monkeypatch.setattr(targets.FeatureExtractor, "_run", run)
    _, copies = loaded(plan)
    last = 12
    with Stages() as stages:
        queue = OrderedQueue[FeatureBatch]("features", plan.feature_slots, 10**9)
        batches = ThreadSafe(last)
        stages.start("target", batches, *[copy.extract for copy in copies], into=queue)
        seen = []
        for features in stages.consume("drafter", queue):
            if features.seq == 0:
                # Full queue, one in the hands of each thread, one with the drafter.
                eventually(lambda: len(entered) == SLOTS + 3 + 1)
                gate.set()
                eventually(lambda: len(entered) == SLOTS + 1 + 3 + 1)
            seen.append(features.seq)
            features.release()
    assert seen == list(range(last))


class ThreadSafe:
    """Batches for several threads, one after the other."""

    def __init__(self, count: int) -> None:
        self._batches = iter([batch_of(seq) for seq in range(count)])
        self._lock = threading.Lock()

    def __iter__(self) -> "ThreadSafe":
        return self

    def __next__(self) -> TokenBatch:
        with self._lock:
            return next(self._batches)
