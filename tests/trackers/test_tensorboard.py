"""trainer/trackers/tensorboard.py: what TensorBoard reads is what was sent, and a resume leaves no zigzag."""

import math
from pathlib import Path

from tests.support.recorded import NAN, read_event_files
from trainer.trackers.scalars import Point
from trainer.trackers.tensorboard import TensorBoard


def test_numbers_come_out_as_they_went_in(tmp_path: Path) -> None:
    files = TensorBoard(tmp_path / "made" / "here")
    for step, loss in ((1, 2.5), (2, NAN), (3, math.inf)):
        files.send(Point(step, 1000.0 + step, 0, {"loss": loss, "queue_items/features": 3.0}))
    files.flush()
    files.close()
    read = read_event_files(tmp_path / "made" / "here")
    assert repr(read["loss"]) == repr([(1, 2.5), (2, NAN), (3, math.inf)])
    assert read["queue_items/features"] == [(1, 3.0), (2, 3.0), (3, 3.0)]


def test_what_a_resume_overtakes_is_gone(tmp_path: Path) -> None:
    """From the same file and from those before it."""
    for attempt in range(3):
        files = TensorBoard(tmp_path)
        if attempt:
            files.restart(3)
        for step in range(1 if attempt == 0 else 3, 6):
            files.send(Point(step, 1000.0 + step, attempt, {"loss": float(10 * attempt + step)}))
        files.close()
    assert read_event_files(tmp_path)["loss"] == [(1, 1.0), (2, 2.0), (3, 23.0), (4, 24.0), (5, 25.0)]


def test_an_evaluation_of_an_earlier_step_takes_nothing_away(tmp_path: Path) -> None:
    files = TensorBoard(tmp_path)
    for step in (1, 2, 3):
        files.send(Point(step, 1000.0 + step, 0, {"loss": 1.0}))
    files.send(Point(1, 1004.0, 0, {"measured_acceptance_length_tokens": 1.5}))
    files.close()
    read = read_event_files(tmp_path)
    assert [step for step, _ in read["loss"]] == [1, 2, 3]
    assert read["measured_acceptance_length_tokens"] == [(1, 1.5)]
