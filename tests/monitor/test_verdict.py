"""One verdict at a time, with the number that matters; and it names the stage that really holds a pipeline of threads."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from trainer.metrics.catalogue.run import VERDICT_STATES
from trainer.monitor.verdict import Evidence, StageShare, Verdict, judge, shares
from trainer.pipeline.queues import Queue
from trainer.pipeline.stages import Stages, StageStats


def share(name: str, busy: float, waiting_input: float = 0.0, **changed: object) -> StageShare:
    given = StageShare(
        name=name,
        threads=1,
        items=40,
        busy_ratio=busy,
        waiting_input_ratio=waiting_input,
        waiting_output_ratio=1 - busy - waiting_input,
        seconds_since_progress=0.2,
        usual_seconds=0.4,
    )
    return replace(given, **changed)


def road(dataset: float, batches: float, target: float, drafter: float) -> tuple[StageShare, ...]:
    """Four stages that are so busy; the drafter waits for input the rest of its time."""
    return share("dataset", dataset), share("batches", batches), share("target", target), share("drafter", drafter, 1 - drafter)


RUNNING = Evidence(
    now=1000.0, state="running", step=50, steps=50, loss=6.1, first_loss=10.8, elapsed=90.0, stages=road(0.1, 0.2, 0.97, 0.724)
)


@pytest.mark.parametrize(
    ("stages", "state", "stage", "sentence"),
    [
        (
            road(0.1, 0.2, 0.97, 0.724),
            "stage_holds",
            "target",
            "The target holds the run back: busy 97 %. Without it: up to +34 %, then the drafter holds.",
        ),
        (
            road(0.1, 0.2, 0.3, 0.97),
            "stage_holds",
            "drafter",
            "The drafter holds the run back: busy 97 %. Without it: up to +223 %, then the target holds.",
        ),
        (road(0.1, 0.2, 0.97, 0.95), "all_well", None, "All devices busy, all well: target 97 %, drafter 95 %."),
        (
            road(0.1, 0.2, 0.88, 0.82),
            "balanced",
            None,
            "Balanced: target 88 %, drafter 82 %; no stage alone holds the run back.",
        ),
        (
            road(0.99, 0.2, 0.33, 0.25),
            "starved",
            "dataset",
            "Starved by the data: the dataset stage is busy 99 % and the drafter waits 75 % of its time. "
            "Without it: up to +200 %, then the target holds.",
        ),
        (
            road(0.95, 0.99, 0.33, 0.25),
            "starved",
            "batches",
            "Starved by the data: the batches stage is busy 99 % and the drafter waits 75 % of its time. "
            "Without it: up to +4 %, then the dataset stage holds.",
        ),
        (
            road(0.001, 0.001, 0.001, 0.97),
            "stage_holds",
            "drafter",
            "The drafter holds the run back: busy 97 %. Without it: more than ten times as fast, then the dataset stage holds.",
        ),
        ((share("drafter", 0.97),), "stage_holds", "drafter", "The drafter holds the run back: busy 97 %."),
    ],
)
def test_weighing(stages: tuple[StageShare, ...], state: str, stage: str | None, sentence: str) -> None:
    verdict = judge(replace(RUNNING, stages=stages), None)
    assert (verdict.state, verdict.stage, verdict.sentence) == (state, stage, sentence)


def test_headroom_is_what_the_run_could_gain() -> None:
    verdict = judge(RUNNING, None)
    assert verdict.headroom_ratio == pytest.approx(0.97 / 0.724 - 1)
    assert verdict.next_stage == "drafter"
    assert judge(replace(RUNNING, stages=road(0.1, 0.1, 0.95, 0.95)), None).headroom_ratio == 0


def test_stages_that_have_ended_hold_nothing_back() -> None:
    stages = (replace(share("dataset", 1.0), running=0), *road(0, 0.2, 0.6, 0.9)[1:])
    assert judge(replace(RUNNING, stages=stages), None).stage == "drafter"


@pytest.mark.parametrize(
    ("changed", "state", "sentence"),
    [
        ({"state": "paused", "step": 1234}, "paused", "Paused at step 1,234."),
        (
            {"state": "finished", "step": 1200, "steps": 1200, "elapsed": 1260.0, "progress_ratio": 1.0},
            "finished",
            "Finished: 1,200 steps in 21 min, loss 10.8 → 6.1.",
        ),
        (
            {"state": "finished", "step": 1200, "steps": 200, "elapsed": 35.0, "progress_ratio": 0.5},
            "finished",
            "Stopped at step 1,200: 200 steps in 35 s since the resume, loss 10.8 → 6.1.",
        ),
        ({"state": "finished", "step": 7, "steps": 0}, "finished", "Finished at step 7, without a step in this attempt."),
        (
            {"state": "failed", "failed_stage": "target", "error": "OutOfMemoryError: no room."},
            "failed",
            "Failed in the target stage: OutOfMemoryError: no room.",
        ),
        ({"state": "failed", "failed_stage": "start", "error": "no"}, "failed", "Failed at the start: no."),
        ({"state": "failed", "failed_stage": None, "error": None}, "failed", "Failed: no reason is known."),
        ({"loss": math.nan}, "diverged", "Diverged: the loss of step 50 is not a number."),
        ({"loss": -math.inf}, "diverged", "Diverged: the loss of step 50 is infinite."),
        ({"skipped_in_a_row": 3}, "diverged", "Diverged: the last 3 steps in a row were skipped."),
        (
            {"steps": 0, "stages": (), "phase": "loading the target", "phase_seconds": 12.2},
            "warming_up",
            "Warming up: loading the target, 12 s so far.",
        ),
        ({"steps": 0, "phase_seconds": 3.0}, "warming_up", "Warming up: waiting for the first step, 3.0 s so far."),
        ({"steps": 1, "stages": (share("drafter", 0.2, 0.8, items=1),)}, "warming_up", "Warming up: 1 step so far."),
    ],
)
def test_what_the_run_says_comes_first(changed: dict[str, object], state: str, sentence: str) -> None:
    verdict = judge(replace(RUNNING, **changed), None)
    assert (verdict.state, verdict.sentence) == (state, sentence)
    assert verdict.state in VERDICT_STATES


def stuck(name: str, seconds: float, **changed: object) -> StageShare:
    return share(name, 1.0, seconds_on_item=seconds, seconds_since_progress=seconds, **changed)


def test_a_stalled_stage_is_named_with_what_is_usual() -> None:
    stages = (*road(0, 0, 0, 0)[:2], stuck("target", 38.4), replace(share("drafter", 0, 1), seconds_since_progress=39.0))
    verdict = judge(replace(RUNNING, stages=stages, stall_seconds=30.0), None)
    assert (verdict.state, verdict.stage) == ("stalled", "target")
    assert verdict.sentence == "The target is stalled: 38 s on one item, usually 0.4 s."
    assert judge(replace(RUNNING, stages=stages, stall_seconds=60.0), None).state != "stalled"


def test_a_stage_that_stalls_on_its_first_item() -> None:
    stages = (stuck("dataset", 400.0, items=0, usual_seconds=None),)
    sentence = judge(replace(RUNNING, steps=0, stages=stages), None).sentence
    assert sentence == "The dataset stage is stalled: 7 min on its first item."


def test_waiting_in_a_circle_is_a_stall_without_a_stage() -> None:
    stages = tuple(share(name, 0.0, 1.0, seconds_since_progress=400.0) for name in ("batches", "target", "drafter"))
    verdict = judge(replace(RUNNING, stages=stages), None)
    assert (verdict.state, verdict.stage) == ("stalled", None)
    assert verdict.sentence == "Stalled: every stage waits, and nothing has moved for 7 min."


TARGET, DATASET = RUNNING, replace(RUNNING, stages=road(0.99, 0.2, 0.33, 0.25))


def follow(*seen: Evidence) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for number, evidence in enumerate(seen):
        verdicts.append(judge(replace(evidence, now=1000.0 + number), verdicts[-1] if verdicts else None))
    return verdicts


def test_a_change_needs_two_windows_in_a_row() -> None:
    verdicts = follow(TARGET, DATASET, TARGET, DATASET, DATASET)
    assert [verdict.stage for verdict in verdicts] == ["target", "target", "target", "target", "dataset"]
    assert [verdict.since for verdict in verdicts] == [1000, 1000, 1000, 1000, 1004]


def test_the_same_verdict_keeps_its_beginning_and_renews_its_numbers() -> None:
    slower = replace(TARGET, stages=road(0.1, 0.2, 0.9, 0.45), lost_device_hours=2.0)
    verdict = follow(TARGET, slower)[-1]
    assert (verdict.since, verdict.headroom_ratio, verdict.lost_device_hours) == (1000, pytest.approx(1.0), 2.0)


@pytest.mark.parametrize("state", ["paused", "finished", "failed"])
def test_what_the_run_says_acts_at_once(state: str) -> None:
    assert follow(TARGET, replace(TARGET, state=state))[-1].state == state


def test_divergence_and_stalls_act_at_once_and_so_does_their_end() -> None:
    assert [v.state for v in follow(TARGET, replace(TARGET, loss=math.nan), TARGET)] == ["stage_holds", "diverged", "stage_holds"]
    stalled = replace(TARGET, stages=(stuck("target", 999.0),))
    assert [v.state for v in follow(TARGET, stalled, TARGET)] == ["stage_holds", "stalled", "stage_holds"]


def test_while_finishing_the_last_verdict_stands() -> None:
    assert follow(TARGET, replace(DATASET, state="finishing"), replace(DATASET, state="finishing"))[-1].stage == "target"


def test_when_the_drafter_has_ended_the_last_verdict_stands() -> None:
    over = replace(DATASET, stages=(*DATASET.stages[:3], replace(DATASET.stages[3], running=0)))
    assert follow(TARGET, over, over)[-1].stage == "target"


def reading(busy: float, waiting_input: float, waiting_output: float, *, threads: int = 1, items: int = 0) -> StageStats:
    return StageStats("target", threads, items, busy, waiting_input, waiting_output, 0.5, 0.0, threads)


def test_shares_are_of_the_window_and_add_up() -> None:
    [one] = shares([reading(100.0, 20.0, 0.0)], [reading(103.0, 20.0, 1.0, items=7)])
    assert (one.busy_ratio, one.waiting_input_ratio, one.waiting_output_ratio, one.items) == (0.75, 0.0, 0.25, 7)


def test_shares_are_of_all_threads() -> None:
    [one] = shares([reading(0, 0, 0, threads=2)], [reading(10.0, 10.0, 0.0, threads=2)])
    assert (one.busy_ratio, one.waiting_input_ratio) == (0.5, 0.5)


def test_shares_of_a_stage_that_is_new_and_of_one_that_has_ended() -> None:
    [new] = shares([], [reading(1.0, 3.0, 0.0)])
    assert new.busy_ratio == 0.25
    [ended] = shares([reading(1.0, 3.0, 0.0)], [reading(1.0, 3.0, 0.0)])
    assert (ended.busy_ratio, ended.waiting_input_ratio, ended.waiting_output_ratio) == (0, 0, 0)


def test_the_usual_time_leaves_the_item_in_progress_out() -> None:
    stalled = replace(reading(42.0, 0.0, 0.0, items=10), seconds_on_item=38.0)
    assert shares([], [stalled])[0].usual_seconds == pytest.approx(0.4)


class Parcel:
    nbytes = 1


def pipeline(seconds: dict[str, float], parcels: int = 30) -> Verdict:
    """Run real threads whose stages sleep that long on each parcel; judge the middle of the run."""

    def work(name: str):
        def stage(parcels: Iterator[Parcel]) -> Iterator[Parcel]:
            for parcel in parcels:
                time.sleep(seconds[name])
                yield parcel

        return stage

    with Stages() as stages:
        samples, batches, features = (Queue[Parcel](name, 3, 1000) for name in ("samples", "batches", "features"))
        stages.start("dataset", (Parcel() for _ in range(10 * parcels)), work("dataset"), into=samples)
        stages.start("batches", samples, work("batches"), into=batches)
        stages.start("target", batches, work("target"), work("target"), into=features)
        early = late = []
        for number, _ in enumerate(stages.consume("drafter", features)):
            time.sleep(seconds["drafter"])
            if number == parcels // 3:
                early = stages.read()
            if number == parcels:
                late = stages.read()
                break
    split = shares(early, late)
    assert [round(sum((one.busy_ratio, one.waiting_input_ratio, one.waiting_output_ratio)), 6) for one in split] == [1.0] * 4
    return judge(replace(RUNNING, stages=split), None)


@pytest.mark.parametrize(
    ("slow", "state"), [("dataset", "starved"), ("batches", "starved"), ("target", "stage_holds"), ("drafter", "stage_holds")]
)
def test_names_the_true_bottleneck_of_real_threads(slow: str, state: str) -> None:
    seconds = dict.fromkeys(("dataset", "batches", "target", "drafter"), 0.002)
    # Two threads share the target's work.
    verdict = pipeline(seconds | {slow: 0.024 if slow == "target" else 0.012})
    assert (verdict.state, verdict.stage) == (state, slow)
    assert verdict.headroom_ratio > 1
