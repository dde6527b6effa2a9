"""The road: what happens to a conversation until the drafter has learnt from it, told once and in order.

dataset ──samples──▶ batches ──batches──▶ target x N ──features──▶ drafter
"""

from __future__ import annotations

import shlex
import sys
from functools import partial

import torch

from trainer.config import TrainConfig
from trainer.run.preflight import Plan, check
from trainer.data.samples import Sample, Tokeniser, Visits
from trainer.data.batches import TokenBatch, pack
from trainer.target.features import FeatureBatch
from trainer.drafter.learner import Learner, StepResult
from trainer.drafter.checkpoint import checkpoint_folder
from trainer.monitor.control import Control
from trainer.evaluate.online import Evaluator, NoEvaluator
from trainer.run.checkpointing import Checkpointer
from trainer.monitor.monitor import Monitor
from trainer.build import load
from trainer.metrics.catalogue.stages import STAGE_ITEM_SECONDS
from trainer.pipeline.queues import OrderedQueue, Queue
from trainer.run.folder import Run, open_run
from trainer.pipeline.stages import Stages
from trainer.watch import Watch, interruptible, listening


def train(config: TrainConfig, command: list[str]) -> None:
    """Train a drafter as `config` says. Raises `ConfigError` before anything is made, and `RunFailedError` after that."""
    plan = check(config)
    with (
        interruptible() as control,
        listening(config.watch) as server,
        open_run(config, plan, command) as run,
        Watch(run, config.watch, server, config.trackers, control, plan.placement) as watch,
    ):
        watch.finish(run_pipeline(plan, run, watch, control))


def run_pipeline(plan: Plan, run: Run, watch: Watch, control: Control) -> str:
    """From loading the target to the last checkpoint. Returns the run's final message."""
    config, monitor = plan.config, watch.monitor
    set_threads = partial(torch.set_num_threads, plan.placement.cpu_threads)
    set_threads()
    learner, extractors, evaluator = load(plan, monitor)
    checkpointer = Checkpointer(run, plan, learner, monitor)
    checkpointer.restore()
    start, size = run.start, int(config.queues.gigabytes * 1e9)
    with evaluator, Stages(thread_start=set_threads, item_bounds=STAGE_ITEM_SECONDS.buckets) as stages:
        watch.observe(stages)
        visits = Visits(plan.conversations, config.seed, config.batches.epochs, start=(start.epoch, start.position))
        samples = Queue[Sample]("samples", config.queues.samples, size)
        stages.start("dataset", visits, Tokeniser(plan.chat, monitor.drop), into=samples)

        packing = partial(pack, token_budget=config.batches.token_budget, first_seq=start.next_seq)
        batches = Queue[TokenBatch]("batches", config.queues.batches, size)
        stages.start("batches", samples, packing, into=batches)

        features = OrderedQueue[FeatureBatch]("features", plan.feature_slots, size, first_seq=start.next_seq)
        stages.start("target", batches, *[extractor.extract for extractor in extractors], into=features)

        for batch in stages.consume("drafter", features, give_up=control.is_stopping):
            if (outcome := learner.learn(batch)) is not None:
                report(outcome, monitor, evaluator)
                checkpointer.save_if_due()
            if learner.is_done:
                break
            if outcome is not None:
                evaluator.measure_if_due(outcome.line.step, learner.drafter)
                handle_requests(control, learner, checkpointer, stages)
            learner.raise_if_diverged()
        else:
            if not control.is_stopping():
                if (outcome := learner.finish()) is not None:
                    report(outcome, monitor, evaluator)
                monitor.use_up_data()
        stages.close()
        finish(learner, checkpointer, evaluator, monitor, control)
    return final_message(run, learner, interrupted=control.is_stopping() and not learner.is_done)


def report(step: StepResult, monitor: Monitor, evaluator: Evaluator | NoEvaluator) -> None:
    """Tell those who follow the steps."""
    monitor.step(step.line, step.skipped, step.progress_ratio)
    evaluator.note(step)


def handle_requests(control: Control, learner: Learner, checkpointer: Checkpointer, stages: Stages) -> None:
    """Between two steps: write a checkpoint that was requested, wait while the run is paused."""
    if control.takes_checkpoint():
        checkpointer.save()
    if control.wants_pause():
        with control.paused(), stages.paused(), learner.paused():
            while control.wait_while_paused(give_up=stages.has_failed):
                checkpointer.save()


def finish(
    learner: Learner, checkpointer: Checkpointer, evaluator: Evaluator | NoEvaluator, monitor: Monitor, control: Control
) -> None:
    """After the last step: its checkpoint, and a last evaluation."""
    monitor.enter("finishing")
    monitor.enter_phase("writing the last checkpoint")
    checkpointer.save_last()
    monitor.enter_phase("measuring acceptance")
    evaluator.measure_last(learner.train_state.step, learner.drafter, give_up=control.is_stopping)


def final_message(run: Run, learner: Learner, *, interrupted: bool) -> str:
    step = learner.train_state.step
    if interrupted and step == 0:
        return "Stopped before the first step, as requested: nothing to resume."
    if interrupted:
        again = shlex.join([sys.executable, "-m", "trainer", "train", "--resume", str(run.folder)])
        return f"Stopped after step {step:,}, as requested. Resume with: {again}"
    return f"Finished after step {step:,}. The drafter is in {checkpoint_folder(run.checkpoints, step)}."
