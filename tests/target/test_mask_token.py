"""trainer/target/mask_token.py: which unused id is found, and which ids cannot stand for a masked position."""

from types import SimpleNamespace

import pytest
from transformers import PreTrainedTokenizerFast

from tests.support import chat_templates as shapes
from trainer.errors import ConfigError
from trainer.target.mask_token import check_mask_token_id, find_mask_token_id
from trainer.target.tiny import END, MASK, PAD, tiny_config, tiny_tokenizer

CHATML_TOKENS = "<|endoftext|> <|im_start|> <|im_end|> <repo_name> <empty_output>"


def vocabulary(special: str) -> PreTrainedTokenizerFast:
    return shapes.byte_level(shapes.CHATML, special, bos="<|im_start|>", eos="<|im_end|>")


@pytest.mark.parametrize(
    ("special", "spare", "token"),
    [
        (CHATML_TOKENS, 40, None),
        (CHATML_TOKENS, 0, "<empty_output>"),
        (f"<mask> <|reserved_special_token_9|> {CHATML_TOKENS}", 0, "<mask>"),
        (f"<|reserved_special_token_0|> <|reserved_special_token_247|> {CHATML_TOKENS}", 0, "<|reserved_special_token_247|>"),
        (f"<unused0> <unused98> <tool> {CHATML_TOKENS}", 0, "<unused98>"),
        (f"[control_8] [control_768] {CHATML_TOKENS}", 0, "[control_768]"),
        (f"<SPECIAL_20> <SPECIAL_999> {CHATML_TOKENS}", 0, "<SPECIAL_999>"),
    ],
)
def test_an_unused_token_is_found_to_mask_with(special: str, spare: int, token: str | None) -> None:
    tokenizer = vocabulary(special)
    config = SimpleNamespace(vocab_size=len(tokenizer) + spare, eos_token_id=None)
    found = find_mask_token_id(config, tokenizer)
    assert found == (len(tokenizer) if token is None else tokenizer.convert_tokens_to_ids(token))
    check_mask_token_id(found, config, tokenizer)


def test_a_vocabulary_without_an_unused_token() -> None:
    tokenizer = vocabulary("<|im_start|> <|im_end|>")
    with pytest.raises(ConfigError, match="has no unused token to mask with: name one"):
        find_mask_token_id(SimpleNamespace(vocab_size=len(tokenizer)), tokenizer)


def test_tinys_mask_token() -> None:
    assert find_mask_token_id(tiny_config(), tiny_tokenizer()) == MASK


@pytest.mark.parametrize(
    ("token", "complaint"),
    [
        (PAD, r"must not be a pad or end token, got 258 \(<\|pad\|>\)"),
        (END, "must not be a pad or end token"),
        (7, "must not be a pad or end token"),
        (260, "must be from 0 to 259, the target's vocabulary, got 260"),
        (-1, "must be from 0 to 259"),
    ],
)
def test_a_mask_token_that_texts_hold_is_refused(token: int, complaint: str) -> None:
    config = tiny_config()
    config.eos_token_id = [END, 7]
    with pytest.raises(ConfigError, match=complaint):
        check_mask_token_id(token, config, tiny_tokenizer())
