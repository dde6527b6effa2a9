import pytest
import torch

from trainer.target.tiny import END, MASK, PAD, PRINTABLE, tiny_config, tiny_model, tiny_tokenizer


def test_it_is_small_and_always_the_same() -> None:
    torch.manual_seed(1)
    first = tiny_model()
    before = torch.get_rng_state()
    second = tiny_model()
    assert torch.equal(before, torch.get_rng_state())
    assert 100_000 < sum(weight.numel() for weight in first.parameters()) < 1_000_000
    for (name, one), (_, other) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    assert first.lm_head.weight[65, :3].tolist() == pytest.approx([-0.1169833, -0.0767927, -0.2227207], abs=1e-6)


def test_it_says_printable_characters_or_ends() -> None:
    with torch.no_grad():
        said = tiny_model()(torch.randint(0, 256, (4, 50))).logits.argmax(-1).unique().tolist()
    assert len(said) > 10
    assert set(said) <= {*PRINTABLE, END}


@pytest.mark.parametrize("text", ["Hello there", "ünï 🤖\n\ttab", "\x00\x7f", "  two  spaces  "])
def test_every_byte_is_a_token(text: str) -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_the_special_tokens_are_where_the_config_says() -> None:
    tokenizer = tiny_tokenizer()
    assert len(tokenizer) == tiny_config().vocab_size
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id) == (END, PAD, MASK)
