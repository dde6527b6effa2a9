"""Every option of a run: one frozen dataclass for each part, validated before anything is loaded.

A wrong value raises `ConfigError` with the flag, the value and the way out. Field docstrings are the texts of `--help`.
"""

from __future__ import annotations

import ipaddress
import json
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from trainer.errors import require
from trainer.files import expand_home
from trainer.metrics.catalogue.watching import TRACKERS
from trainer.record.format import RUN_ID, RUN_ID_RULE

Precision = Literal["auto", "float32", "bfloat16"]
Objective = Literal["cross_entropy", "dpace", "distillation"]


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    max_length: int = 3072
    """Tokens kept of each conversation; the rest is cut off."""
    template_args: dict[str, str] = field(default_factory=dict)
    """Extra arguments for the target's chat template, such as `enable_thinking false`; values are JSON or plain words."""

    def __post_init__(self) -> None:
        require(self.max_length >= 8, "dataset.max_length", "at least 8 tokens", self.max_length)

    def template_values(self) -> dict[str, Any]:
        """`template_args` with their values parsed."""
        return {name: _read_value(word) for name, word in self.template_args.items()}


@dataclass(frozen=True, kw_only=True)
class BatchesConfig:
    token_budget: int = 8192
    """Most context tokens in a batch; at least `--dataset.max-length`."""
    epochs: int = 6
    """Passes over the data."""

    def __post_init__(self) -> None:
        require(self.token_budget >= 8, "batches.token_budget", "at least 8 tokens", self.token_budget)
        require(self.epochs >= 1, "batches.epochs", "at least 1", self.epochs)


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    block_size: int = 16
    """Tokens of a block: the anchor and the masked positions that are drafted at once."""
    layers: int = 5
    """Decoder layers of the drafter."""
    anchors: int = 512
    """Anchors drawn from each batch and shared fairly among its conversations (the paper: 512 from each conversation)."""
    target_layers: int = 5
    """Number of target layers whose outputs are the features; DFlash's rule spreads them over the target."""
    target_layer_ids: tuple[int, ...] = ()
    """The ids of these layers (from 0), instead of the rule's choice."""
    mask_token_id: int | None = None
    """Token id that stands for a masked position; by default an unused one of the target's vocabulary."""

    def __post_init__(self) -> None:
        size = "at least 2 (one anchor, one guess)"
        require(self.block_size >= 2, "drafter.block_size", size, self.block_size)
        require(self.layers >= 1, "drafter.layers", "at least 1", self.layers)
        require(self.anchors >= 1, "drafter.anchors", "at least 1", self.anchors)
        require(self.target_layers >= 1, "drafter.target_layers", "at least 1", self.target_layers)
        ids = self.target_layer_ids
        ordered = all(i >= 0 for i in ids) and list(ids) == sorted(set(ids))
        require(ordered, "drafter.target_layer_ids", "distinct layer numbers from 0, in rising order", ids)


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    objective: Objective = "cross_entropy"
    """What the drafter learns: the data's tokens, early positions of a block weighted more than late ones (`cross_entropy`); the
    same, weighted by how much of a block's accepted length depends on each (`dpace`); or the target's own distribution
    (`distillation`)."""
    gamma: float | None = None
    """Decay of the weight along a block, in tokens; by default 7, 5 or 4 for blocks of 16, 10 or 8 tokens. Not for `dpace`."""
    dpace_alpha: float = 0.5
    """`dpace` only: weight of a position whose draft is certainly wrong, above 0; at 1 weights do not depend on the drafter."""

    def __post_init__(self) -> None:
        require(self.gamma is None or self.gamma > 0, "loss.gamma", "above 0", self.gamma)
        decays = self.objective != "dpace"
        require(decays or self.gamma is None, "loss.gamma", "left out where --loss.objective is dpace: it has no decay", self.gamma)
        require(0 < self.dpace_alpha <= 1, "loss.dpace_alpha", "above 0 and at most 1", self.dpace_alpha)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    learning_rate: float = 6e-4
    """Peak learning rate."""
    weight_decay: float = 0.01
    """AdamW's weight decay; norms have none."""
    warmup_ratio: float = 0.04
    """Share of the steps in which the learning rate rises; then it falls to 0 along a cosine."""
    clip: float = 1.0
    """Largest gradient norm; larger gradients are scaled down to it."""
    accumulate: int = 1
    """Batches per optimizer step."""

    def __post_init__(self) -> None:
        require(0 < self.learning_rate < 1, "optimizer.learning_rate", "between 0 and 1", self.learning_rate)
        require(0 <= self.weight_decay < math.inf, "optimizer.weight_decay", "0 or more", self.weight_decay)
        require(0 <= self.warmup_ratio <= 1, "optimizer.warmup_ratio", "from 0 to 1", self.warmup_ratio)
        require(self.clip > 0, "optimizer.clip", "above 0", self.clip)
        require(self.accumulate >= 1, "optimizer.accumulate", "at least 1", self.accumulate)


@dataclass(frozen=True, kw_only=True)
class QueuesConfig:
    samples: int = 256
    """Most samples that wait to be packed."""
    batches: int = 4
    """Most batches that wait for the target."""
    features: int = 4
    """Most batches of features that wait for the drafter."""
    gigabytes: float = 4.0
    """Most memory of each queue, in GB (1e9 bytes)."""

    def __post_init__(self) -> None:
        for name in ("samples", "batches", "features"):
            require(getattr(self, name) >= 1, f"queues.{name}", "at least 1 item", getattr(self, name))
        require(0 < self.gigabytes < math.inf, "queues.gigabytes", "above 0", self.gigabytes)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every: int = 500
    """Steps between checkpoints; 0 writes only the last one."""
    keep: int = 3
    """Number of newest checkpoints to keep."""

    def __post_init__(self) -> None:
        require(self.every >= 0, "checkpoint.every", "0 or more steps", self.every)
        require(self.keep >= 1, "checkpoint.keep", "at least 1", self.keep)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    every: int = 500
    """Steps between measurements of the acceptance length by real speculative decoding; 0 never measures."""
    prompts: str | None = None
    """Prompts to decode: a text or .jsonl file, or a saved dataset; by default the data's split `held_out`, `validation` or
    `test`."""
    limit: int = 16
    """Most prompts to decode; the first ones are taken."""
    max_new_tokens: int = 128
    """Most tokens in an answer."""

    def __post_init__(self) -> None:
        expand_home(self, "prompts")
        require(self.every >= 0, "evaluate.every", "0 or more steps", self.every)
        require(self.limit >= 1, "evaluate.limit", "at least 1 prompt", self.limit)
        require(self.max_new_tokens >= 2, "evaluate.max_new_tokens", "at least 2", self.max_new_tokens)


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    host: str = "127.0.0.1"
    """Address that serves `/status` and `/metrics`; any but a loopback address needs `--watch.token-file`."""
    port: int = 9400
    """Port of that address; 0 picks a free one, -1 serves nothing."""
    allow_hosts: tuple[str, ...] = ()
    """Host names accepted besides localhost, such as the one that a reverse proxy sends."""
    token_file: str | None = None
    """File with the token that may pause, stop and checkpoint the run; created with a random token where it is missing."""
    linger_seconds: float = 0.0
    """How long the run still answers after its end, so that a scraper sees how it ended."""
    announce: str | None = None
    """Folder in which Prometheus finds this trainer while it runs (`file_sd`)."""
    sample_seconds: float = 1.0
    """Time from one sample of queues, stages and the process to the next."""
    gpu_seconds: float = 2.0
    """Time from one sample of the GPUs to the next; 0 leaves them alone."""
    stall_seconds: float = 300.0
    """A stage counts as stalled when it has work and room but has made no progress for this long."""
    console: Literal["auto", "live", "plain", "off"] = "auto"
    """A live display, plain lines, or nothing; `auto` is the live display on a terminal and plain lines elsewhere."""

    def __post_init__(self) -> None:
        expand_home(self, "token_file", "announce")
        guarded = is_loopback(self.host) or (_is_address(self.host) and self.token_file is not None)
        require(
            guarded,
            "watch.host",
            "a loopback address such as 127.0.0.1, or another address of this machine with --watch.token-file",
            self.host,
        )
        require(-1 <= self.port <= 65535, "watch.port", "from -1 to 65535", self.port)
        require(0.05 <= self.sample_seconds <= 60, "watch.sample_seconds", "from 0.05 to 60", self.sample_seconds)
        gpu_pace = self.gpu_seconds == 0 or 1 <= self.gpu_seconds <= 60
        require(gpu_pace, "watch.gpu_seconds", "from 1 to 60, or 0 for none", self.gpu_seconds)
        require(self.stall_seconds > 0, "watch.stall_seconds", "above 0", self.stall_seconds)
        require(0 <= self.linger_seconds <= 3600, "watch.linger_seconds", "from 0 to 3600", self.linger_seconds)
        require(self.token_file != "", "watch.token_file", "a file", self.token_file)
        require(self.announce != "", "watch.announce", "a folder", self.announce)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    target: str
    """The frozen model: a folder, a hub id, `demo` or `tiny`."""
    data: str
    """Conversations: a folder made by `datasets.save_to_disk`, or `demo`."""
    runs: str = "runs"
    """Folder of all runs."""
    name: str | None = None
    """The run's id; by default date, time and four random hex digits."""
    config: str | None = None
    """A TOML file with any of these options; flags override it."""
    resume: str | None = None
    """A run to continue, by id or folder, with its own config; flags override it."""
    warm_start: Annotated[str | None, tyro.conf.arg(aliases=("--from",))] = None
    """A drafter to start from, which also decides the drafter's shape: an exported folder, a run or a checkpoint."""
    seed: int = 0
    """Decides the order of the data, the anchors and the initial weights."""
    max_steps: int | None = None
    """Optimizer steps after which the run ends, if the epochs do not end earlier."""
    target_devices: tuple[str, ...] = ("auto",)
    """Devices of the target, one thread each, such as `cuda:0 cuda:1` or `cpu cpu`."""
    drafter_device: str = "auto"
    """Device on which the drafter trains."""
    precision: Precision = "auto"
    """Precision of the target's weights and the drafter's products; `auto` is bfloat16 on GPUs that have it, else float32."""
    cpu_threads: int | None = None
    """Threads that torch uses within one stage; by default half of the cores."""
    trackers: tuple[str, ...] = ()
    """Also send the numbers to `wandb`, `tensorboard` or both, each from a process of its own."""
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    batches: BatchesConfig = field(default_factory=BatchesConfig)
    drafter: DrafterConfig = field(default_factory=DrafterConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    queues: QueuesConfig = field(default_factory=QueuesConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)

    def __post_init__(self) -> None:
        expand_home(self, "target", "data", "runs", "config", "resume", "warm_start")
        require(bool(self.target), "target", "a folder, a hub id, `demo` or `tiny`", self.target)
        require(bool(self.data), "data", "a folder made by datasets.save_to_disk, or `demo`", self.data)
        known = all(tracker in TRACKERS for tracker in self.trackers)
        require(known, "trackers", f"among {', '.join(TRACKERS)}", self.trackers)
        require(self.name is None or RUN_ID.fullmatch(self.name) is not None, "name", RUN_ID_RULE, self.name)
        require(0 <= self.seed < 2**63, "seed", "from 0 to 2**63 - 1", self.seed)
        require(self.max_steps is None or self.max_steps >= 1, "max_steps", "at least 1", self.max_steps)
        require(len(self.target_devices) >= 1, "target_devices", "at least one device", self.target_devices)
        require(self.cpu_threads is None or self.cpu_threads >= 1, "cpu_threads", "at least 1", self.cpu_threads)
        fits = self.batches.token_budget >= self.dataset.max_length
        budget = f"at least --dataset.max-length ({self.dataset.max_length}), so that every conversation fits into a batch"
        require(fits, "batches.token_budget", budget, self.batches.token_budget)
        either = "left out with --resume: a run continues from its own checkpoint"
        require(not (self.resume and self.warm_start), "from", either, self.warm_start)
        enough = self.dataset.max_length >= self.drafter.block_size
        block = f"at most --dataset.max-length ({self.dataset.max_length})"
        require(enough, "drafter.block_size", block, self.drafter.block_size)


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether a host name or address always means this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_value(word: str) -> Any:
    """`word` parsed as JSON or as Python's True, False or None, else the word itself."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(word, word))
    except ValueError:
        return word
