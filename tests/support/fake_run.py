"""Writes a believable run folder in the record's format (docs/record.md), for tests and for looking at the page without a trainer.

`python -m tests.support.fake_run runs/demo --steps 2000 --live` writes 2000 steps at once and then goes on in real time.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path
from typing import Any

import orjson

POSITIONS = 7
TICK_SECONDS = 1.0
STEPS_PER_SECOND = 3.9
SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

MADE_OF = {
    "loss_unit": "nats per draft token",
    "config": {
        "seed": 0,
        "target": {"model": "demo", "devices": ["cpu"], "layer_ids": [1, 8, 15, 22, 28]},
        "drafter": {"layers": 2, "block_size": POSITIONS + 1, "anchors": 64},
        "batches": {"token_budget": 1024, "max_length": 512},
        "evaluate": {"every": 500, "prompts": None, "limit": 16, "max_new_tokens": 256},
        "optimizer": {"learning_rate": 6e-4, "warmup_ratio": 0.04, "clip_norm": 1.0},
    },
    "target": {
        "name": "SmolLM2-135M-Instruct",
        "architecture": "LlamaForCausalLM",
        "parameters": 134_515_008,
        "layers": 30,
        "hidden_size": 576,
        "vocab_size": 49152,
        "layer_ids": [1, 8, 15, 22, 28],
        "precision": "float32",
    },
    "drafter": {"parameters": 11_800_000, "layers": 2, "block_size": POSITIONS + 1, "mask_token_id": 16},
    "data": {"path": "demo", "conversations": 320, "fingerprint": "5b1f0c77", "held_out": 16},
}


class FakeRun:
    """A run that writes itself: `steps()` and `tick()` append a line each, as a trainer would, on a clock of its own."""

    def __init__(self, folder: Path, *, max_steps: int = 4000, gpus: int = 0, started: float | None = None, seed: int = 0) -> None:
        self.folder = folder
        self.max_steps, self.gpus = max_steps, gpus
        self.random = random.Random(seed)
        self.started = self.clock = time.time() if started is None else started
        self.attempt, self.step_number, self.context, self.draft = 0, 0, 0, 0
        self.attempt_began = self.clock
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_bytes(orjson.dumps(self._facts(), option=orjson.OPT_INDENT_2))
        self.event("started", f"Training {folder.name} for {max_steps} steps.")

    def append(self, name: str, *rows: dict[str, Any]) -> None:
        with (self.folder / f"{name}.jsonl").open("ab") as file:
            file.write(b"".join(orjson.dumps(row) + b"\n" for row in rows))

    def event(self, name: str, message: str, **fields: Any) -> None:
        self.append("events", {**self._stamp(), "event": name, "step": self.step_number, "message": message, **fields})

    def steps(self, count: int, *, seconds: float = 0.25, **changed: Any) -> None:
        """Appends `count` steps, `seconds` apart; `changed` fields replace the made-up ones (`loss=float("nan")`)."""
        self.append("steps", *(self._next_step(seconds, changed) for _ in range(count)))

    def tick(self, state: str = "running", **changed: Any) -> None:
        """Appends a telemetry tick; `changed` fields replace the made-up ones."""
        done = {"step": self.step_number, "max_steps": self.max_steps, "progress_ratio": self.step_number / self.max_steps}
        left = {"eta_seconds": (self.max_steps - self.step_number) / STEPS_PER_SECOND, "state": state}
        self.append("telemetry", {**self._stamp(), **done, **left, **self._live(state), **changed})

    def evaluate(self, **changed: Any) -> None:
        """Appends an evaluation of the drafter as it is now; `changed` fields replace the made-up ones."""
        top = 0.55 * (1 - math.exp(-self.step_number / 800))
        kept = [max(0.0, top * 0.55**place + self.random.gauss(0, 0.01)) for place in range(POSITIONS)]
        length = 1 + sum(kept)
        row: dict[str, Any] = {
            "measured_length": length,
            "acceptance_by_position": kept,
            "held_out_estimated_length": length + self.random.uniform(0.05, 0.15),
            "training_estimated_length": length + self.random.uniform(0.2, 0.4),
            "prompts": 16,
            "rounds": int(2400 / length),
            "tokens": 2400,
            "seconds": 21.4,
            "tokens_per_second": 112.0,
        }
        message = f"Measured acceptance length {length:.2f} on 16 held-out prompts after step {self.step_number:,}."
        self.event("evaluated", message, **{**row, **changed})

    def play(self, steps: int, *, seconds: float = 0.25, checkpoint_every: int = 500, evaluate_every: int = 0) -> None:
        """Steps, a telemetry tick for each second of them, checkpoints, and evaluations."""
        ticked = self.clock
        for _ in range(steps):
            self.steps(1, seconds=seconds)
            if self.clock - ticked >= TICK_SECONDS:
                ticked = self.clock
                self.tick()
            if self.step_number % checkpoint_every == 0:
                path = f"checkpoints/step-{self.step_number:09d}"
                self.event("checkpoint", f"Checkpoint written to {path}.", path=path, bytes=48_120_332, seconds=0.61)
            if evaluate_every and self.step_number % evaluate_every == 0:
                self.evaluate()

    def resume(self, step: int, **fields: Any) -> None:
        """A new attempt from the checkpoint at `step`; later steps of the old one are overtaken. `fields` go into its event."""
        self.attempt += 1
        self.clock += 40.0
        self.attempt_began = self.clock
        self.step_number = step
        self.event("resumed", f"Resumed from step {step}.", **fields)

    def _stamp(self) -> dict[str, Any]:
        return {"attempt": self.attempt, "time": round(self.clock, 3)}

    def _next_step(self, seconds: float, changed: dict[str, Any]) -> dict[str, Any]:
        took = seconds * self.random.uniform(0.9, 1.1)
        self.clock += took
        self.step_number += 1
        self.context += self.random.randint(900, 1024)
        self.draft += 512
        step = self.step_number
        loss = 1.9 + 7.5 * math.exp(-step / 260) + 1.2 * math.exp(-step / 1800) + self.random.gauss(0, 0.12)
        top = 0.62 * (1 - math.exp(-step / 700)) + 0.04
        accuracy = [min(1.0, max(0.0, top * 0.86**place + self.random.gauss(0, 0.012))) for place in range(POSITIONS)]
        row: dict[str, Any] = {
            **self._stamp(),
            "step": step,
            "elapsed": round(self.clock - self.attempt_began, 3),
            "epoch": step / 1500,
            "loss": loss,
            "learning_rate": 6e-4 * min(1, step / 100) * (0.5 + 0.5 * math.cos(math.pi * min(1, step / self.max_steps))),
            "grad_norm": abs(self.random.gauss(0.9, 0.25)) + 3 * math.exp(-step / 150),
            "position_accuracy": accuracy,
            "estimated_acceptance_length": 1 + sum(math.prod(accuracy[: place + 1]) for place in range(POSITIONS)),
            "context_tokens": self.context,
            "draft_tokens": self.draft,
            "samples": step * 4,
            "step_seconds": took,
        }
        row.update(changed)
        return {name: SPECIAL.get(str(value), value) if isinstance(value, float) else value for name, value in row.items()}

    def _live(self, state: str) -> dict[str, Any]:
        jitter = self.random.uniform(-0.02, 0.02)
        speed = STEPS_PER_SECOND + 6 * jitter
        target, drafter = 0.95 + jitter, 0.71 + jitter
        return {
            "rates": {
                "context_tokens_per_second": 962 * speed,
                "draft_tokens_per_second": 512 * speed,
                "steps_per_second": speed,
            },
            "stages": [
                _stage("dataset", 1, self.step_number * 4, 0.04, 0.0),
                _stage("batches", 1, self.step_number, 0.09 + jitter, 0.11),
                _stage("target", 2, self.step_number, target, 0.02),
                _stage("drafter", 1, self.step_number, drafter, 0.99 - drafter),
            ],
            "queues": [
                _queue("samples", self.random.choice([62, 63, 64, 64]), 64, 9_000),
                _queue("batches", self.random.choice([7, 8, 8, 8]), 8, 33_000),
                _queue("features", self.random.choice([0, 0, 1, 2]), 4, 11_796_480),
            ],
            "devices": [self._device(index) for index in range(self.gpus)],
            "process": {"cpu_cores": 1.85 + jitter, "memory_bytes": int(2.1e9 + 1e6 * self.random.random())},
            "verdict": self._verdict(state),
        }

    def _device(self, index: int) -> dict[str, Any]:
        active = (0.95 if index == 0 else 0.71) + self.random.uniform(-0.03, 0.03)
        return {
            "index": index,
            "name": "NVIDIA H200",
            "kernel_active_ratio": active,
            "memory_used_bytes": int((61 + index * 12 + self.random.random()) * 1e9),
            "memory_total_bytes": 150_754_820_096,
            "power_watts": 700 * active * 0.9,
            "temperature_celsius": 45 + 20 * active,
        }

    def _verdict(self, state: str) -> dict[str, Any]:
        sentence = "The target holds the run back: busy 95 %. Without it: up to +34 %, then the drafter holds."
        return {
            "state": "stage_holds" if state == "running" else state,
            "stage": "target" if state == "running" else None,
            "sentence": sentence if state == "running" else f"The run is {state}.",
            "since": self.started + 20,
            "headroom_ratio": 0.34,
            "next_stage": "drafter",
            "lost_device_hours": 0.29 * (self.clock - self.started) / 3600,
        }

    def _facts(self) -> dict[str, Any]:
        name = self.folder.name
        return {
            "schema": 1,
            "id": name,
            "name": name,
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "command": ["python", "-m", "trainer", "train", "--target", "demo", "--data", "demo", "--name", name],
            "git_commit": "0f3c9a1d2b4e5f60718293a4b5c6d7e8f9012345",
            "host": "workbench",
            "pid": 4242,
            "versions": {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.15.0", "draftscope": "0.1.0"},
            "max_steps": self.max_steps,
            "devices": [{"index": i, "name": "NVIDIA H200", "kind": "cuda"} for i in range(self.gpus)]
            or [{"index": 0, "name": "2 CPU cores", "kind": "cpu"}],
            **MADE_OF,
        }


def _stage(name: str, threads: int, items: int, busy: float, waiting_input: float) -> dict[str, Any]:
    return {
        "name": name,
        "threads": threads,
        "items": items,
        "busy_ratio": busy,
        "waiting_input_ratio": waiting_input,
        "waiting_output_ratio": max(0.0, 1 - busy - waiting_input),
        "seconds_since_progress": 0.2,
    }


def _queue(name: str, items: int, capacity: int, item_bytes: int) -> dict[str, Any]:
    return {
        "name": name,
        "items": items,
        "capacity_items": capacity,
        "bytes": items * item_bytes,
        "capacity_bytes": 536_870_912,
        "fill_ratio": max(items / capacity, items * item_bytes / 536_870_912),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--evaluate-every", type=int, default=200, help="steps between evaluations, 0 for none")
    parser.add_argument("--live", action="store_true", help="go on after the steps, in real time")
    args = parser.parse_args()
    run = FakeRun(args.folder, gpus=args.gpus, started=time.time() - args.steps * 0.25)
    run.play(args.steps, evaluate_every=args.evaluate_every)
    while args.live:
        time.sleep(TICK_SECONDS)
        run.clock = time.time() - TICK_SECONDS
        run.steps(4)
        run.tick()


if __name__ == "__main__":
    main()
