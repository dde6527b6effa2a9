"""The target: a folder, a hub id, `demo` or `tiny`, found once; config, tokenizer and weights are each read when first needed.

Everything that needs the target is handed a `Target`. It keeps what it has read, so that a command asks the hub at most once for
each file. Nothing is kept beyond the object: a folder that changed is read anew by the next `Target.find`.
"""

from __future__ import annotations

import copy
import logging
import os
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
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

# The attention of these layers treats a position that starts again at 0 as the border between packed documents.
LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDescription:
    """What the config alone says about a target. `name`, `source` and `note` are those of `Target`; 0 positions mean no limit."""

    name: str
    source: str
    architecture: str
    layers: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    note: str = ""


@dataclass(kw_only=True)
class Target:
    """The frozen model that a drafter is trained for. Make one with `Target.find`; each property is read once, on first use."""

    name: str
    """As the user gave it."""
    source: str
    """What is loaded: a folder, a hub id or `tiny`."""
    note: str = ""
    """A sentence where another model stands in for the one named, else ""."""
    _in_cache: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether a first `load` has put all files into the hub's cache."""

    @classmethod
    def find(cls, name: str) -> Target:
        """Resolve a name, without reading anything from it yet. Raises `ConfigError` for what cannot be a model."""
        quiet_libraries()
        if name == "tiny":
            return cls(name=name, source="tiny")
        if name == "demo":
            return cls._find_demo()
        folder = Path(name).expanduser()
        if folder.is_dir():
            _check_folder(name, folder)
            return cls(name=name, source=str(folder))
        if folder.exists() or not HUB_ID.fullmatch(name):
            raise ConfigError(f"target {name!r} is no folder and no hub id: {ACCEPTED}")
        return cls(name=name, source=name)

    @classmethod
    def _find_demo(cls) -> Target:
        if missing := smollm2.missing_parts():
            note = f"The demo target is not available, since {missing}; a tiny random target stands in for it."
            log.warning(note)
            return cls(name="demo", source="tiny", note=note)
        return cls(name="demo", source=str(smollm2.demo_folder()))

    @cached_property
    def config(self) -> Any:
        """The `transformers` config. Raises `ConfigError`."""
        return tiny_config() if self.source == "tiny" else self._read(AutoConfig, "config")

    @property
    def text_config(self) -> Any:
        """The part of the config that describes the language model. Raises `ConfigError`."""
        return self.config.get_text_config()

    @cached_property
    def description(self) -> TargetDescription:
        """Raises `ConfigError` where there is no such model, or it is not one that drafters are made for."""
        text = self.text_config
        for needed in ("num_hidden_layers", "hidden_size", "vocab_size"):
            if not isinstance(getattr(text, needed, None), int):
                raise ConfigError(
                    f"target {self.name!r} is no decoder-only language model (its config has no {needed}): {ACCEPTED}"
                )
        return TargetDescription(
            name=self.name,
            source=self.source,
            architecture=(getattr(self.config, "architectures", None) or [self.config.model_type])[0],
            layers=text.num_hidden_layers,
            hidden_size=text.hidden_size,
            vocab_size=text.vocab_size,
            max_positions=getattr(text, "max_position_embeddings", 0) or 0,
            note=self.note,
        )

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A fast tokenizer (the loss mask needs its offsets) with a chat template. Raises `ConfigError` for any other."""
        tokenizer = tiny_tokenizer() if self.source == "tiny" else self._read(AutoTokenizer, "tokenizer", **self._known())
        if not getattr(tokenizer, "is_fast", False):
            way = "load and save it once with AutoTokenizer.from_pretrained(..., use_fast=True), so that it has a tokenizer.json"
            raise ConfigError(
                f"target {self.name!r} has a slow tokenizer, which does not report where in the text a token is: {way}"
            )
        if not tokenizer.chat_template:
            way = "use the model's instruct version, or put its template into chat_template.jinja beside tokenizer.json"
            raise ConfigError(f"target {self.name!r} has no chat template: {way}")
        return tokenizer

    def outline(self) -> PreTrainedModel:
        """The model without its weights, on the `meta` device.

        Raises `ConfigError` for a model whose parts are not where training looks for them.
        """
        config = self.config
        if getattr(config, "quantization_config", None):
            raise ConfigError(
                f"target {self.name!r} is quantised, which is not supported yet: give the model that it was quantised from"
            )
        mixing = set(getattr(self.text_config, "layer_types", None) or ()) - LAYER_TYPES
        if mixing:
            raise ConfigError(
                f"target {self.name!r} has layers ({', '.join(sorted(mixing))}) that cannot keep packed documents apart"
            )
        with torch.device("meta"):
            try:
                model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            except Exception as error:  # a model's own code may raise anything over its config
                reason = f"{type(error).__name__}: {error}"[:200]
                raise ConfigError(
                    f"target {self.name!r} is no causal language model that transformers can build ({reason})"
                ) from error
        _check_parts(self.name, model)
        return model

    def load(self, dtype: torch.dtype, device: torch.device | str) -> PreTrainedModel:
        """The weights in `dtype` on `device`, frozen, in evaluation mode. Raises `ConfigError` unless every weight is there.

        Each call reads the files again: two devices get two copies.
        """
        if self.source == "tiny":
            model: Any = tiny_model(dtype)
        else:
            arguments = {**self._known(), "dtype": dtype, "output_loading_info": True, "local_files_only": self._in_cache}
            model, report = self._read(AutoModelForCausalLM, "weights", **arguments)
            self._in_cache = True
            _check_complete(self.name, report["missing_keys"])
        return model.to(device).eval().requires_grad_(False)

    def _known(self) -> dict[str, Any]:
        """Arguments that keep `from_pretrained` from reading the config, and from asking which commit `main` is, once more."""
        commit = getattr(self.config, "_commit_hash", None)
        return {"config": copy.deepcopy(self.config), **({"_commit_hash": commit} if commit else {})}

    def _read(self, loader: Any, part: str, **arguments: Any) -> Any:
        """`loader.from_pretrained`; every failure becomes a `ConfigError` of one sentence."""
        offline = not Path(self.source).is_dir() and self._hub_is_unreachable
        if offline:
            arguments["local_files_only"] = True
        try:
            return loader.from_pretrained(self.source, trust_remote_code=False, **arguments)
        except Exception as error:  # the hub, JSON, safetensors and pickle all have exceptions of their own
            if offline:
                unreachable = f"the hub ({hub.ENDPOINT}) cannot be reached to look for it"
                raise ConfigError(f"target {self.name!r} is no folder here, and {unreachable}: {ACCEPTED}") from error
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"the {part} of target {self.name!r} cannot be read ({reason}): {ACCEPTED}") from error

    @cached_property
    def _hub_is_unreachable(self) -> bool:
        """Whether the hub is switched off or its host has no address here. Its own client would retry for 20 s to find out."""
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


def quiet_libraries() -> None:
    """Turn off progress bars and advice of `transformers`. Downloads keep their bars, since they can take an hour."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _check_folder(name: str, folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"target {name!r} is a folder without a config.json: {ACCEPTED}")
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        raise ConfigError(f"target {name!r} is a folder without weights (model.safetensors): {ACCEPTED}")


def _check_parts(name: str, model: PreTrainedModel) -> None:
    """Raise `ConfigError` unless the decoder has `layers` and a last `norm`, and the head is one matrix."""
    layers, head = getattr(model.get_decoder(), "layers", None), model.get_output_embeddings()
    if not isinstance(layers, nn.ModuleList) or not hasattr(model.get_decoder(), "norm"):
        raise ConfigError(f"target {name!r} is a {type(model).__name__}, whose decoder is not made of `layers` and a last `norm`")
    if head is None or getattr(head, "bias", None) is not None:
        raise ConfigError(f"target {name!r} has no plain output head without a bias, which a DFlash drafter needs")


def _check_complete(name: str, missing: Collection[str]) -> None:
    """Raise `ConfigError` for weights that no file has: transformers would fill them with random numbers."""
    if missing:
        some = ", ".join(sorted(missing)[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        way = "copy or download the whole model again"
        raise ConfigError(f"target {name!r} has no weights for {some}, and a drafter would learn from random ones: {way}")
