from collections import Counter

from trainer.data.stdlib_prompts import stdlib_prompts


def test_there_are_hundreds_of_prompts_of_every_kind() -> None:
    prompts = stdlib_prompts(seed=0)
    kinds = Counter(category for category, _ in prompts)
    assert set(kinds) == {"summary", "plain_words", "question", "function", "use", "rewrite", "example", "module", "statement"}
    assert min(kinds.values()) >= 40
    assert len({text for _, text in prompts}) == len(prompts) >= 600


def test_prompts_are_short_lines_of_prose() -> None:
    for _, text in stdlib_prompts(seed=0):
        assert 30 < len(text) < 620
        assert text == text.strip()
        assert "::=" not in text
