"""trainer/decoding/sampling.py: the distribution drawn from is transformers' own, and drafts leave it as it is."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch

from tests.support.chi_square import Text, chance_of, even
from tests.support.warpers import warped
from trainer.decoding.sampling import GREEDY, Draft, Sampling, TokenSampler
from trainer.errors import ConfigError

V = 4
TEXTS = 1200
CPU = torch.device("cpu")
# So small a chance fails about one correct sampler in ten thousand, and then always: seeds are fixed.
UNLIKELY, IMPOSSIBLE = 1e-4, 1e-9
FAR, NEAR = 0.0, 0.9
SAMPLINGS = {
    "plain": Sampling(temperature=1.0),
    "cold": Sampling(temperature=0.6),
    "top_k": Sampling(temperature=1.3, top_k=3),
    "top_p": Sampling(temperature=1.0, top_p=0.8),
    "all": Sampling(temperature=0.9, top_k=4, top_p=0.9),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def logits(seed: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


# What is drawn from.


def test_probabilities_by_hand() -> None:
    logit_1V = torch.tensor([[math.log(8), math.log(4), math.log(2), math.log(2)]])
    assert Sampling(temperature=1.0).probabilities(logit_1V)[0].tolist() == pytest.approx([0.5, 0.25, 0.125, 0.125])
    assert Sampling(temperature=0.5).probabilities(logit_1V)[0].tolist() == pytest.approx([64 / 88, 16 / 88, 4 / 88, 4 / 88])
    assert Sampling(temperature=1.0, top_k=2).probabilities(logit_1V)[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert Sampling(temperature=1.0, top_p=0.6).probabilities(logit_1V)[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert Sampling(temperature=1.0, top_p=0.01).probabilities(logit_1V)[0].tolist() == [1, 0, 0, 0], "the likeliest always stays"
    assert Sampling(temperature=1.0, top_k=99).probabilities(logit_1V)[0].tolist() == pytest.approx([0.5, 0.25, 0.125, 0.125])
    # Half of what top_k leaves is more than half of all: the order of the two shows.
    both = Sampling(temperature=1.0, top_k=2, top_p=0.6)
    assert both.probabilities(logit_1V)[0].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.8, 0, 0.7), (0.8, 12, 0.85)])
def test_probabilities_are_those_of_transformers(seed: int, temperature: float, top_k: int, top_p: float) -> None:
    logit_TV, sampling = logits(seed, 3, 50, scale=2.0), Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    torch.testing.assert_close(sampling.probabilities(logit_TV), warped(sampling, logit_TV))


def test_the_coldest_and_the_hottest_draw_stay_finite() -> None:
    for temperature in (1e-3, 1e30):
        share_TV = Sampling(temperature=temperature).probabilities(logits(0, 2, 9, scale=1e3).bfloat16())
        assert share_TV.sum(-1).tolist() == pytest.approx([1, 1])
        assert share_TV.dtype == torch.float32


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"temperature": -1.0}, "--temperature must be 0"),
        ({"temperature": 1e-9}, "--temperature must be 0"),
        ({"temperature": math.nan}, "--temperature must be 0"),
        ({"temperature": math.inf}, "--temperature must be 0"),
        ({"top_p": 0.0}, "--top-p must be above 0"),
        ({"top_p": 1.1}, "--top-p must be above 0"),
        ({"top_k": -1}, "--top-k must be 0"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(knobs: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Sampling(**knobs)  # type: ignore[arg-type]


# Greedy.


@pytest.mark.parametrize(
    ("draft", "truth", "kept"),
    [([1, 2, 3], [1, 2, 3, 0], [1, 2, 3, 0]), ([1, 2, 3], [1, 0, 3, 2], [1, 0]), ([1, 2], [0, 2, 3], [0]), ([], [3], [3])],
)
def test_greedy_verification_keeps_what_the_target_says(draft: list[int], truth: list[int], kept: list[int]) -> None:
    target_KV = torch.nn.functional.one_hot(torch.tensor(truth), V).float()
    assert TokenSampler(GREEDY, 0, CPU).verify(Draft(draft, None), target_KV) == kept


# At random. A target that looks one token back, and a drafter that guesses two tokens at once, each by itself.


class World:
    """`target_VV` and `draft_VKV` are logits behind each last token; texts have three tokens behind token 0."""

    def __init__(self, sampling: Sampling, likeness: float) -> None:
        self.sampling = sampling
        self.target_VV = logits(1, V, V, scale=1.5)
        own_VKV = logits(2, V, 2, V, scale=1.5)
        self.draft_VKV = likeness * self.target_VV[:, None] + (1 - likeness) * own_VKV

    def exact(self) -> dict[Text, float]:
        """The target's distribution over texts, by enumerating them: of each token transformers' own."""
        share_VV = warped(self.sampling, self.target_VV).double()
        return {
            text: math.prod(float(share_VV[before, token]) for before, token in zip((0, *text), text, strict=False))
            for text in product(range(V), repeat=3)
        }

    def draw(self, sampler: TokenSampler) -> Text:
        text = [0]
        while len(text) < 4:
            draft = sampler.draft(self.draft_VKV[text[-1]])
            text += sampler.verify(draft, self.target_VV[[text[-1], *draft.token_ids]])
        return tuple(text[1:4])

    def chance(self, kind: Callable[[Sampling, int, torch.device], TokenSampler]) -> float:
        sampler = kind(self.sampling, 5, CPU)
        return chance_of(Counter(self.draw(sampler) for _ in range(TEXTS)), self.exact())


@pytest.mark.parametrize(("name", "likeness"), [*((name, FAR) for name in SAMPLINGS), ("plain", NEAR), ("all", NEAR)])
def test_drafted_text_follows_the_targets_distribution(name: str, likeness: float) -> None:
    assert World(SAMPLINGS[name], likeness).chance(TokenSampler) > UNLIKELY


class KeepsAll(TokenSampler):
    def verify(self, draft: Draft, target_KV: torch.Tensor) -> list[int]:
        return [*draft.token_ids, self.next_token(target_KV[-1])]


class SubtractsNothing(TokenSampler):
    """Draws the token that replaces a refused one from p instead of p - q."""

    def verify(self, draft: Draft, target_KV: torch.Tensor) -> list[int]:
        kept = super().verify(draft, target_KV)
        return [*kept[:-1], self.next_token(target_KV[len(kept) - 1])]


class TrustsTheTargetAlone(TokenSampler):
    """Accepts as if every token were drafted with the same probability."""

    def verify(self, draft: Draft, target_KV: torch.Tensor) -> list[int]:
        assert draft.q_KV is not None
        return super().verify(Draft(draft.token_ids, torch.full_like(draft.q_KV, 1 / V)), target_KV)


class LooksARowTooFar(TokenSampler):
    def verify(self, draft: Draft, target_KV: torch.Tensor) -> list[int]:
        return super().verify(draft, target_KV.roll(-1, 0))


@pytest.mark.parametrize("broken", [KeepsAll, SubtractsNothing, TrustsTheTargetAlone, LooksARowTooFar])
def test_that_test_finds_a_wrong_verification(broken: type[TokenSampler]) -> None:
    """Even with a drafter so near that little is refused."""
    assert World(SAMPLINGS["plain"], NEAR).chance(broken) < IMPOSSIBLE


def test_the_better_the_drafter_the_more_is_kept() -> None:
    def kept(likeness: float) -> float:
        world, sampler = World(SAMPLINGS["plain"], likeness), TokenSampler(SAMPLINGS["plain"], 3, CPU)
        lengths = []
        for _ in range(400):
            draft = sampler.draft(world.draft_VKV[0])
            lengths.append(len(sampler.verify(draft, world.target_VV[[0, *draft.token_ids]])))
        return sum(lengths) / len(lengths)

    assert kept(0.0) < kept(0.7) < kept(1.0)


def test_a_drafter_equal_to_the_target_is_never_refused() -> None:
    sampler, logit_KV = TokenSampler(SAMPLINGS["all"], 4, CPU), logits(3, 3, V)
    for _ in range(200):
        draft = sampler.draft(logit_KV[:2])
        assert sampler.verify(draft, logit_KV)[:2] == draft.token_ids


def test_the_generator_is_its_own_and_comes_from_the_seed() -> None:
    state = torch.get_rng_state()
    draws = [TokenSampler(SAMPLINGS["plain"], seed, CPU).draft(logits(3, 30, V)).token_ids for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(torch.get_rng_state(), state)


# The test of the tests.


def test_counts_are_held_against_exact_shares() -> None:
    texts = [(number,) for number in range(4)]
    fair = Counter(dict(zip(texts, (260, 240, 255, 245), strict=True)))
    assert chance_of(fair, even(texts)) == pytest.approx(0.801, abs=1e-3), "a statistic of 1.0 with 3 degrees of freedom"
    assert chance_of(Counter({texts[0]: 400, texts[1]: 200, texts[2]: 200, texts[3]: 200}), even(texts)) < 1e-20
    assert chance_of(Counter({(9,): 1, **fair}), even(texts)) == 0.0
