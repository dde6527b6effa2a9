"""Writes the model card of an exported drafter: what it is, where it comes from and how to serve it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from trainer.formats.load import TrainedDrafter
from trainer.formatting import number, plain, steps
from trainer.target.load import HUB_ID, TargetDescription

Format = Literal["zlab", "speculators"]

UNTRAINED = (
    "> **UNTRAINED.** The weights of this drafter are random: almost nothing that it drafts will be accepted. It lets you try a\n"
    "> serving stack before paying for training. Do not judge speed or acceptance by it, and do not publish it."
)

INPUTS = (
    "A drafter only works with the inputs it was trained on: the outputs of the target's decoder layers named above (counted from\n"
    "0; `hidden_states[id + 1]` in transformers), and the rows of the target's embedding, unscaled. A server that scales these\n"
    "rows, as Gemma's own forward does, or that reads layers one off, loads it without an error and accepts almost nothing."
)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What a card describes."""

    trained: TrainedDrafter
    target: TargetDescription
    dtype: torch.dtype
    format: Format


def model_card(exported: Exported) -> str:
    """The card, in the Markdown of model hubs."""
    return "\n\n".join(_parts(exported)) + "\n"


def _parts(exported: Exported) -> Iterator[str]:
    name = plain(exported.target.name)
    yield _front_matter(exported.target)
    yield f"# A DFlash drafter for {name}"
    if exported.trained.step == 0:
        yield UNTRAINED
    yield (
        f"A small model that drafts blocks of tokens for `{name}`, which verifies them: the text stays the target's own and takes\n"
        "fewer steps (DFlash, arXiv 2602.06036). Trained with Draftscope."
    )
    yield _table(_shape(exported))
    yield "## Where it comes from"
    yield _table(_origin(exported.trained))
    if exported.trained.measured and exported.dtype == torch.bfloat16:
        yield _rounded(exported.trained.training.precision)
    yield "## How to serve it"
    yield from (_zlab_ways if exported.format == "zlab" else _speculators_ways)(exported)
    yield "## What it expects"
    yield INPUTS
    if exported.trained.training.template_args:
        args = json.dumps(exported.trained.training.template_args, ensure_ascii=False)
        yield f"It was trained on conversations rendered with `{args}` for the target's chat template. Serve with the same."


def _front_matter(target: TargetDescription) -> str:
    base = [f"base_model: {target.name}"] if _is_on_hub(target) else []
    return "\n".join(["---", *base, "tags:", "- dflash", "- speculative-decoding", "---"])


def _shape(exported: Exported) -> Iterator[tuple[str, str]]:
    config = exported.trained.config
    yield "target", f"{plain(exported.target.name)} ({plain(exported.target.architecture)})"
    yield "format", {"zlab": "z-lab's", "speculators": "speculators 0.9.0"}[exported.format]
    yield "parameters", f"{sum(weight.numel() for weight in exported.trained.drafter.parameters()):,}"
    yield "decoder layers", str(config.num_hidden_layers)
    yield "block size", f"{config.block_size} tokens: the anchor and {config.block_size - 1} drafted"
    yield "target layers it reads", ", ".join(map(str, config.dflash_config["target_layer_ids"]))
    yield "mask token", str(config.dflash_config["mask_token_id"])
    yield "weights", str(exported.dtype).removeprefix("torch.")


def _origin(trained: TrainedDrafter) -> Iterator[tuple[str, str]]:
    training, measured = trained.training, trained.measured
    yield "optimizer steps", steps(trained.step)
    yield (
        "measured acceptance length",
        f"{measured.measured_length:.2f} tokens per round, including the bonus token; real decoding of "
        f"{number(measured.prompts)} held-out prompts at step {steps(measured.step)}"
        if measured
        else "not measured",
    )
    if training.began_with:
        yield "started from", _began_with(training.began_with)
    if training.data:
        size = f"{number(training.conversations, ',')} conversations, fingerprint {plain(training.data_fingerprint)}"
        yield "data", f"{plain(training.data)} ({size})"
    rest = {
        "run": training.run,
        "command": f"`{plain(training.command)}`" if training.command else None,
        "git commit of Draftscope": training.git_commit,
        "precision of target and training": training.precision,
        "versions": ", ".join(f"{name} {version}" for name, version in training.versions.items()),
    }
    yield from ((name, plain(value)) for name, value in rest.items() if value)


def _began_with(before: dict[str, Any]) -> str:
    """The drafter that a warm start began with."""
    target = f", made for {plain(before['target'])}" if before.get("target") else ""
    digest = f", weights {plain(before['weights'])}" if before.get("weights") else ""
    return f"the drafter in {plain(before.get('name'))} (step {steps(before.get('step'))}{target}{digest})"


def _rounded(precision: str | None) -> str:
    """Why the measured acceptance may differ from that of the weights here, which were rounded since."""
    then = (
        "mixed precision (weights in float32, products in bfloat16)" if precision == "bfloat16" else plain(precision or "another")
    )
    return (
        f"Acceptance was measured during training, in {then}. The weights here are\n"
        "rounded to bfloat16, so acceptance may differ a little: check it with `python -m trainer evaluate`."
    )


def _table(rows: Iterator[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in rows)])


def _zlab_ways(exported: Exported) -> Iterator[str]:
    target, block = _served_as(exported.target), exported.trained.config.block_size
    yield f"`FOLDER` is this folder{'' if target != 'TARGET' else ', `TARGET` the folder or hub id of the target'}."
    yield "With z-lab's package (`pip install dflash`), whose own class loads it without `trust_remote_code`:"
    yield _code("python", _zlab_code(target))
    yield "With SGLang:"
    words = ["--model-path", target, "--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "FOLDER"]
    yield _code("sh", shlex.join(["python", "-m", "sglang.launch_server", *words, "--speculative-num-draft-tokens", str(block)]))
    yield "With vLLM, which needs an attention backend that supports non-causal attention:"
    how = json.dumps({"method": "dflash", "model": "FOLDER", "num_speculative_tokens": block - 1})
    yield _code("sh", shlex.join(["vllm", "serve", target, "--speculative-config", how, "--attention-backend", "flash_attn"]))


def _speculators_ways(exported: Exported) -> Iterator[str]:
    yield "`FOLDER` is this folder. With vLLM, which finds the target by the name in `config.json`:"
    yield _code("sh", "vllm serve FOLDER --attention-backend flash_attn")
    yield "With `speculators`, to look at it or to train on:"
    lines = (
        "from speculators.models.dflash import DFlashDraftModel",
        "",
        'drafter = DFlashDraftModel.from_pretrained("FOLDER")  # it reads embedding and head from the target',
    )
    yield _code("python", "\n".join(lines))


def _zlab_code(target: str) -> str:
    return "\n".join(
        (
            "from dflash import DFlashDraftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'target = AutoModelForCausalLM.from_pretrained("{target}", dtype="auto", device_map="cuda").eval()',
            'drafter = DFlashDraftModel.from_pretrained("FOLDER", dtype=target.dtype).to(target.device).eval()',
            f'tokenizer = AutoTokenizer.from_pretrained("{target}")',
            'chat = [{"role": "user", "content": "Why is the sky blue?"}]',
            'ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=False)',
            "end = target.generation_config.eos_token_id  # one token or several: a chat often ends with another than a text",
            "ends = {tokenizer.eos_token_id, *(end if isinstance(end, list) else [end])} - {None}",
            "said = drafter.spec_generate(target, ids.to(target.device), 256, list(ends))",
            "print(tokenizer.decode(said[0]))",
        )
    )


def _served_as(target: TargetDescription) -> str:
    """The target's name in commands for others to run: a hub id, else a placeholder."""
    return target.name if _is_on_hub(target) else "TARGET"


def _is_on_hub(target: TargetDescription) -> bool:
    return "/" in target.name and HUB_ID.fullmatch(target.name) is not None and not Path(target.source).is_dir()


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
