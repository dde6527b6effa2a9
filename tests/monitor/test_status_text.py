import math
import re
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_monitor import NOW, a_status, sample_status
from trainer.monitor.status import Status
from trainer.monitor.status_text import WIDTH, bar, progress, render, share_cells, shares_bar


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_the_verdict_comes_first():
    first, second = render(a_status(), NOW).splitlines()[:2]
    assert first == "The target holds the run back: busy 97 %. Without it: up to +34 %, then the drafter holds."
    assert second == "stage holds · for 12 min · 0.01 device hours lost to waiting"


def test_the_run_is_told_in_full():
    text = render(a_status(), NOW)
    assert line_of(text, "run").endswith("demo-x9f2 · running · started 2026-11-30 10:21:03 UTC, 12 min ago")
    assert line_of(text, "step").endswith("1,240 of 5,000 (25 %) · epoch 1.50 · ETA 2 h 10 min")
    assert "3.4123 nats per draft token · learning rate 5.90e-04 · gradient norm 0.812" in line_of(text, "loss")
    assert line_of(text, "rates").endswith("410 context tokens/s · 12.3k draft tokens/s · 0.4 steps/s")
    assert line_of(text, "acceptance").endswith("2.31 tokens per round, estimated")
    assert line_of(text, "  accuracy").endswith("by position: 0.61 0.40 0.28 –")
    assert line_of(text, "checkpoint").endswith("step 1,000 · 3 min ago · runs/demo-x9f2/checkpoints/step-000001000")
    assert line_of(text, "warnings").endswith("3 conversations were dropped: the chat template refused them")


def test_estimated_and_measured_acceptance_keep_their_names():
    measured = {"measured_length": 2.1, "measured_at_step": 1000, "measured_by_position": [0.6, 0.3, None]}
    acceptance = measured | {"held_out_estimated_length": 2.25}
    text = render(a_status(acceptance=acceptance), NOW)
    assert line_of(text, "acceptance").endswith("2.31 tokens per round, estimated · 2.10 measured at step 1,000")
    assert line_of(text, "  measured").endswith("by position: 0.60 0.30 –")
    assert line_of(text, "  held out").endswith("2.25 tokens per round, estimated on the measured conversations")
    assert "  measured" not in render(a_status(), NOW)


def test_the_flow_strip_has_a_whole_bar_for_each_stage_and_a_fill_for_each_queue():
    text = render(a_status(), NOW)
    assert "█" * 19 + "·" + "     97 %" in line_of(text, "target")
    assert "█" * 14 + "▒" * 6 in line_of(text, "drafter")
    assert "█" * 5 + "·" * 15 in line_of(text, "features")
    assert "1 of 4 · 2.9 MB of 4.0 GB" in line_of(text, "features")


def test_devices_or_why_there_are_none():
    assert "NVIDIA H200 · kernels active 90 % · 81.0 GB of 150 GB · 412 W, 51 °C" in line_of(render(a_status(), NOW), "GPU 0")
    without = render(a_status(devices=[], gpu_sampler={"up": False, "reason": "No GPU figures: no driver."}), NOW)
    assert "devices     no GPU figures, only the process's\n            No GPU figures: no driver.\n" in without


def test_what_gpus_do_not_tell():
    of_gpus = {"reason": "GPU 1 does not answer: GPU is lost.", "notes": ["GPU 0: no NVLink traffic: too old."]}
    text = render(a_status(gpu_sampler=of_gpus), NOW)
    assert "            GPU 1 does not answer: GPU is lost.\n            GPU 0: no NVLink traffic: too old.\n" in text


def test_a_part_of_a_gpu():
    [device] = sample_status()["devices"]
    assert "NVIDIA H200" in line_of(render(a_status(devices=[device | {"mig": 1}]), NOW), "GPU 0:1")


NULLABLE = [name for name, field in Status.model_fields.items() if type(None) in get_args(field.annotation)]


def test_nothing_known_yet_is_still_a_table():
    text = render(
        a_status(**dict.fromkeys(NULLABLE), stages=[], queues=[], devices=[], rates=dict.fromkeys(sample_status()["rates"])), NOW
    )
    assert "step        1,240 (–) · epoch – · ETA –" in text
    assert line_of(text, "loss").startswith("loss        – ·")


def test_the_loss_is_told_in_the_unit_of_its_objective():
    assert "3.4123 nats per block · " in render(a_status(loss_unit="nats per block"), NOW)


def test_values_that_are_not_numbers_are_shown_as_they_are():
    text = render(a_status(loss="NaN", grad_norm="Infinity", last_error="RuntimeError: boom"), NOW)
    assert "NaN nats per draft token" in text
    assert "gradient norm Infinity" in text
    assert line_of(text, "error").endswith("RuntimeError: boom")


def test_progress_says_where_the_run_may_end_before_its_last_step():
    assert progress(a_status()) == "1,240 of 5,000 (25 %)"
    assert progress(a_status(progress_ratio=0.9)) == "1,240 of at most 5,000 (90 %)"
    assert progress(a_status(max_steps=None)) == "1,240 (25 %)"
    assert "ETA" not in render(a_status(state="finished", eta_seconds=0.0), NOW)


def test_the_phase_is_told_only_while_it_lasts():
    assert "starting (loading the target)" in render(a_status(state="starting", phase="loading the target"), NOW)
    assert "loading" not in render(a_status(phase="loading the target"), NOW)


def test_a_long_silence_fits_in_its_row():
    stage = sample_status()["stages"][2] | {"seconds_since_progress": 86_340.0, "items": 123_456_789, "waiting_output_ratio": 1.0}
    text = render(a_status(stages=[stage]), NOW)
    assert line_of(text, "target").endswith("123M  23 h 59 min ago")
    assert max(map(len, text.splitlines())) <= WIDTH


def test_hostile_and_long_text_stays_inside_its_lines():
    nasty = "\x1b[31mred\x1b[0m\nnext\ttab\x07" + "x" * 500
    run = {"id": nasty, "name": nasty, "started_at": nasty}
    text = render(a_status(run=run, last_error=nasty, warnings=[nasty], phase=nasty), NOW)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    assert max(map(len, text.splitlines())) <= WIDTH


@given(st.sets(st.sampled_from(NULLABLE)))
def test_any_field_that_may_be_null_may_be(missing):
    assert max(map(len, render(a_status(**dict.fromkeys(missing)), NOW).splitlines())) <= WIDTH


def test_bar():
    assert (bar(0.5, 4), bar(7, 4), bar(0.0, 4)) == ("██··", "████", "····")


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(lambda ratios: sum(ratios) > 1e-6))
def test_shares_always_fill_the_bar(ratios):
    cells = share_cells(ratios, 24)
    assert sum(cells) == 24
    assert all(abs(cell - ratio / math.fsum(ratios) * 24) < 1 + 1e-9 for cell, ratio in zip(cells, ratios, strict=True))


def test_a_stage_that_spent_no_time_is_blank():
    assert shares_bar([0.0, 0.0, 0.0], 8) == " " * 8
