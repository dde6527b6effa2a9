"""Small random targets of several families, with the byte-level tokenizer, whose printable gibberish comes to an end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from trainer.data.chat_template import Chat
from trainer.target.tiny import BEGIN, END, PAD, PRINTABLE, tiny_tokenizer

SHAPE = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": BEGIN,
    "eos_token_id": END,
    "pad_token_id": PAD,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "Llama": (LlamaConfig, LlamaForCausalLM, {}),
    "Llama 3.1": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3}),
    "Qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 32}),
    "Mistral, sliding": (MistralConfig, MistralForCausalLM, {"sliding_window": 24}),
    "Gemma 3": (Gemma3TextConfig, Gemma3ForCausalLM, {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 24}),
}
PROMPTS = tuple(
    f"{word} {number}" for number in range(4) for word in ("Say", "Count to", "What is", "Tell me of", "Why not", "And")
)


def talker(family: str, seed: int = 11, **shape: Any) -> Any:
    """A target of the family, its weights drawn from the seed, of another shape where that is given."""
    config_class, model_class, more = FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        model = model_class(config_class(**{**SHAPE, **more, **shape}))
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                scale = 0.3 if "embed" in name else weight.shape[1] ** -0.5 * (1.0 if "lm_head" in name else 1.5)
                weight.copy_(torch.randn(weight.shape, generator=dice) * scale)
        spoken = torch.zeros(SHAPE["vocab_size"], 1)
        spoken[list(PRINTABLE)], spoken[END] = 1.0, 1.6
        model.lm_head.weight.mul_(spoken)
    return model.eval().requires_grad_(False)


def answers_of(model: Any, prompts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    """What the target says greedily to each prompt, the token that ends it included, by transformers' own loop."""
    width = max(map(len, prompts))
    padded_BT = torch.tensor([[PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask_BT = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    said_BT = model.generate(padded_BT, attention_mask=mask_BT, do_sample=False, max_new_tokens=most, pad_token_id=PAD)
    return [said[: said.index(END) + 1 if END in said else most] for said in said_BT[:, width:].tolist()]


def conversations_of(model: Any, chat: Chat, *, count: int, tokens: tuple[int, int]) -> list[list[dict[str, str]]]:
    """`count` conversations whose answers the target came to the end of within these numbers of tokens, the end included."""
    asked = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    answers = answers_of(model, [list(chat.prompt_ids(messages)) for messages in asked], tokens[1])
    found = [
        [*messages, {"role": "assistant", "content": chat.decode(said)}]
        for messages, said in zip(asked, answers, strict=True)
        if said[-1] == END and len(said) >= tokens[0]
    ]
    assert len(found) >= count, f"only {len(found)} answers came to an end: choose another seed"
    return found[:count]


def tiny_chat() -> Chat:
    return Chat(tiny_tokenizer())


def save_talker(model: Any, folder: Path) -> str:
    """A folder that every command takes for a target."""
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)
