"""The `tiny` target: a random Llama of a few hundred thousand weights with a byte-level tokenizer, built in memory.

Nothing is downloaded or read from disk. The weights come from a fixed seed, so they are the same on every machine. It generates
printable gibberish and ends an answer now and then: enough to try every command within seconds.
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20260
SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<|pad|>", "<|mask|>")
BEGIN, END, PAD, MASK = range(256, 260)
PRINTABLE = (ord("\n"), *range(ord(" "), ord("~") + 1))

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_config() -> LlamaConfig:
    """Eight layers, so that DFlash's rule has five distinct layers to tap."""
    return LlamaConfig(
        vocab_size=256 + len(SPECIAL_TOKENS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=PAD,
        architectures=["LlamaForCausalLM"],
    )


def tiny_model(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """The model on the CPU. The caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(tiny_config())
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.fill_(1.0)
            else:
                weight.copy_(torch.randn(weight.shape, generator=generator) * _scale(name, weight.shape[1]))
        _keep_printable(model.lm_head.weight)
    return model.to(dtype).eval()


def _scale(name: str, fan_in: int) -> float:
    """Small embeddings and large layer weights make the next token depend on the whole text rather than on the last token."""
    if name.endswith("embed_tokens.weight"):
        return 0.3
    return float(fan_in**-0.5) * (1.0 if name.startswith("lm_head") else 1.5)


def _keep_printable(head_VD: torch.Tensor) -> None:
    """Zero the rows of all but printable characters (their logit stays 0), and scale up the end token so that answers end."""
    scale_V1 = torch.zeros(head_VD.shape[0], 1)
    scale_V1[list(PRINTABLE)] = 1.0
    scale_V1[END] = 1.5
    head_VD.mul_(scale_V1)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Token ids 0 to 255 are the bytes, then come the special tokens; no merges."""
    alphabet = _byte_alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={sign: byte for byte, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[1],
        pad_token=SPECIAL_TOKENS[2],
        mask_token=SPECIAL_TOKENS[3],
        chat_template=CHAT_TEMPLATE,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def _byte_alphabet() -> list[str]:
    """The character that byte-level tokenizers use for each byte: its own where that is visible, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(0x100 + hidden.index(byte)) for byte in range(256)]
