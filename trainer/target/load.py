"""The target by name: a folder, a hub id, `demo` or `tiny` in, its config, tokenizer and weights out.

`describe` and `load_tokenizer` read no weights, so that a wrong name or an unfit tokenizer is found before anything else happens.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants as hub
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from trainer.errors import ConfigError
from trainer.target import smollm2
from trainer.target.tiny import tiny_config, tiny_model, tiny_tokenizer

ACCEPTED = "give a folder with config.json and weights, a hub id such as `Qwen/Qwen3-8B`, `demo` or `tiny`"
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.bin.index.json")


# Their attention takes positions that begin again for borders of documents.
KINDS_OF_LAYER = frozenset({"full_attention", "sliding_attention", "chunked_attention"})

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDescription:
    """What is known of a target before its weights are read.

    `name` is what was asked for, `source` what is loaded: a folder, a hub id or `tiny`. `note` is a sentence where the two are
    different models, else "".
    """

    name: str
    source: str
    architecture: str
    layers: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Source:
    place: str
    note: str = ""


def describe(name: str) -> TargetDescription:
    """Read the target's config. Raises `ConfigError` where there is no such model or it is not one that drafters are made for."""
    source, config = _resolve(name), load_config(name)
    text = config.get_text_config()
    for needed in ("num_hidden_layers", "hidden_size", "vocab_size"):
        if not isinstance(getattr(text, needed, None), int):
            raise ConfigError(f"target {name!r} is no decoder-only language model (its config has no {needed}): {ACCEPTED}")
    return TargetDescription(
        name=name,
        source=source.place,
        architecture=(getattr(config, "architectures", None) or [config.model_type])[0],
        layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        max_positions=getattr(text, "max_position_embeddings", 0) or 0,
        note=source.note,
    )


def load_config(name: str) -> Any:
    """The target's `transformers` config."""
    source = _resolve(name)
    return tiny_config() if source.place == "tiny" else _read(name, source, AutoConfig, "config")


def load_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The target's tokenizer: fast (its offsets make the loss mask) and with a chat template, else `ConfigError`."""
    source = _resolve(name)
    tokenizer = tiny_tokenizer() if source.place == "tiny" else _read(name, source, AutoTokenizer, "tokenizer")
    if not getattr(tokenizer, "is_fast", False):
        way = "load and save it once with AutoTokenizer.from_pretrained(..., use_fast=True), so that it has a tokenizer.json"
        raise ConfigError(f"target {name!r} has a slow tokenizer, which cannot say where in the text a token lies: {way}")
    if not tokenizer.chat_template:
        way = "use the model's instruct version, or put its template into chat_template.jinja beside tokenizer.json"
        raise ConfigError(f"target {name!r} has no chat template: {way}")
    return tokenizer


def outline_target(name: str) -> PreTrainedModel:
    """The target without its weights, on the `meta` device. Raises `ConfigError` where its parts are not where training looks."""
    config = load_config(name)
    if getattr(config, "quantization_config", None):
        raise ConfigError(f"target {name!r} is quantised, which cannot be trained for yet: give the model that it was made from")
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ()) - KINDS_OF_LAYER
    if kinds:
        raise ConfigError(f"target {name!r} has layers ({', '.join(sorted(kinds))}) that cannot keep packed documents apart")
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        except Exception as error:  # whatever a model's own code raises over its config
            reason = f"{type(error).__name__}: {error}"[:200]
            raise ConfigError(f"target {name!r} is no causal language model that transformers can build ({reason})") from error
    layers, head = getattr(model.get_decoder(), "layers", None), model.get_output_embeddings()
    if not isinstance(layers, nn.ModuleList) or not hasattr(model.get_decoder(), "norm"):
        raise ConfigError(f"target {name!r} is a {type(model).__name__}, whose decoder is not made of `layers` and a last `norm`")
    if head is None or getattr(head, "bias", None) is not None:
        raise ConfigError(f"target {name!r} has no plain output head without a bias, which a DFlash drafter needs")
    return model


def load_target_model(name: str, dtype: torch.dtype, device: torch.device | str) -> PreTrainedModel:
    """The target's weights in `dtype` on `device`, frozen and in evaluation mode. Raises `ConfigError` unless all are there."""
    source = _resolve(name)
    if source.place == "tiny":
        model: Any = tiny_model(dtype)
    else:
        model, report = _read(name, source, AutoModelForCausalLM, "weights", dtype=dtype, output_loading_info=True)
        _check_whole(name, report["missing_keys"])
    return model.to(device).eval().requires_grad_(False)


def _check_whole(name: str, missing: Collection[str]) -> None:
    """Raise `ConfigError` for weights that are not in the files, tied ones apart: transformers makes up random ones instead."""
    if missing:
        some = ", ".join(sorted(missing)[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        way = "copy or download the whole model again"
        raise ConfigError(f"target {name!r} has no weights for {some}, and a drafter would learn from random ones: {way}")


def quiet_libraries() -> None:
    """No progress bars and no advice from `transformers`; downloads still show theirs, since they can take an hour."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@functools.cache
def _resolve(name: str) -> _Source:
    quiet_libraries()
    if name == "tiny":
        return _Source("tiny")
    if name == "demo":
        return _resolve_demo()
    folder = Path(name).expanduser()
    if folder.is_dir():
        _check_folder(name, folder)
        return _Source(str(folder))
    if folder.exists() or not HUB_ID.fullmatch(name):
        raise ConfigError(f"target {name!r} is no folder and no hub id: {ACCEPTED}")
    return _Source(name)


def _resolve_demo() -> _Source:
    if missing := smollm2.missing_parts():
        note = f"The demo target cannot be had, since {missing}; a tiny random target stands in for it."
        log.warning(note)
        return _Source("tiny", note)
    return _Source(str(smollm2.demo_folder()))


def _check_folder(name: str, folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"target {name!r} is a folder without a config.json: {ACCEPTED}")
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        raise ConfigError(f"target {name!r} is a folder without weights (model.safetensors): {ACCEPTED}")


def _read(name: str, source: _Source, loader: Any, part: str, **arguments: Any) -> Any:
    """`loader.from_pretrained`, with every failure told in one sentence."""
    if not Path(source.place).is_dir():
        arguments["local_files_only"] = _hub_is_unreachable()
    try:
        return loader.from_pretrained(source.place, trust_remote_code=False, **arguments)
    except Exception as error:  # whatever a wrong name or a broken folder makes of the hub, JSON, safetensors and pickle
        if arguments.get("local_files_only"):
            raise ConfigError(
                f"target {name!r} is no folder here, and the hub ({hub.ENDPOINT}) cannot be reached to look for it: {ACCEPTED}"
            ) from error
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"the {part} of target {name!r} cannot be read ({reason}): {ACCEPTED}") from error


@functools.cache
def _hub_is_unreachable() -> bool:
    """Whether nobody is to ask the hub, or its name is unknown here: its own client would try for 20 s before it says so."""
    if hub.HF_HUB_OFFLINE:
        return True
    if any(os.environ.get(variable) for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return False
    host = re.sub(r"^\w+://|[:/].*$", "", hub.ENDPOINT.rstrip("/"))
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return True
    return False
