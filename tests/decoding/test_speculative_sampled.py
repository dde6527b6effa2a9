"""trainer/decoding/speculative.py, sampled: whole drafted texts follow the target's distribution, which is known exactly here."""

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.chi_square import Text, chance_of
from tests.support.warpers import warped
from trainer.config import DrafterConfig
from trainer.decoding.sampling import Sampling, TokenSampler
from trainer.decoding.speculative import SpeculativeDecoder, decode_alone
from trainer.drafter.model import Drafter, drafter_architecture

VOCAB, END = 4, 1
PROMPT = [0, 2, 3, 2]
LONGEST = 3
TEXTS = 250
UNLIKELY, IMPOSSIBLE = 1e-4, 1e-9


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them only get in each other's way over tensors this small
    yield
    torch.set_num_threads(threads)


def stirred(module: torch.nn.Module, seed: int) -> None:
    """Weights large enough that what is likely depends on the text."""
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=dice) * (0.2 if weight.ndim == 1 else 0.5) + float(weight.ndim == 1))


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, **shape, max_position_embeddings=64, tie_word_embeddings=False))
    stirred(model, 3)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def drafter(model: LlamaForCausalLM) -> Drafter:
    knobs = DrafterConfig(block_size=3, layers=1, target_layer_ids=(0, 1))
    drafter = Drafter(drafter_architecture(model.config, knobs, (0, 1), mask_id=0))
    stirred(drafter, 4)
    return drafter.eval().requires_grad_(False)


def exact(model: LlamaForCausalLM, sampling: Sampling, begun: Text = ()) -> dict[Text, float]:
    """The probability of each text that can follow the prompt, by asking the target for all of them, without a cache."""
    if len(begun) == LONGEST or begun[-1:] == (END,):
        return {begun: 1.0}
    logit_1V = model(torch.tensor([[*PROMPT, *begun]]), use_cache=False).logits[0, -1:]
    found: dict[Text, float] = {}
    for token, share in enumerate(warped(sampling, logit_1V)[0].tolist()):
        if share:
            found.update({text: share * rest for text, rest in exact(model, sampling, (*begun, token)).items()})
    return found


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0), Sampling(temperature=0.8, top_k=3, top_p=0.9)])
def test_drafted_texts_follow_the_targets_distribution(model: LlamaForCausalLM, drafter: Drafter, sampling: Sampling) -> None:
    known = exact(model, sampling)
    with SpeculativeDecoder(model, drafter) as speculator:

        def draw(seed: int) -> Text:
            said = speculator.decode(PROMPT, max_new_tokens=LONGEST, stop_ids=[END], sampling=sampling, seed=seed)
            kept.update(one.kept for one in said.rounds)
            return tuple(said.token_ids)

        kept: Counter[int] = Counter()
        counts = Counter(draw(seed) for seed in range(TEXTS))
    assert chance_of(counts, known) > UNLIKELY
    assert min(kept[1], kept[2]) > 0, "drafts are refused as well as kept"


def test_the_target_alone_draws_from_the_same(model: LlamaForCausalLM) -> None:
    sampling = Sampling(temperature=1.0)
    alone = (
        decode_alone(model, PROMPT, max_new_tokens=LONGEST, stop_ids=[END], sampling=sampling, seed=seed) for seed in range(TEXTS)
    )
    assert chance_of(Counter(tuple(text.token_ids) for text in alone), exact(model, sampling)) > UNLIKELY


def test_that_test_would_find_drafts_that_are_all_kept(model: LlamaForCausalLM, drafter: Drafter) -> None:
    """Texts of the drafter's own: what would come out if nothing were refused."""
    sampling = Sampling(temperature=1.0)
    with SpeculativeDecoder(model, drafter) as speculator, pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenSampler, "verify", lambda self, draft, target_KV: [*draft.token_ids, self.next_token(target_KV[-1])])
        counts = Counter(
            tuple(speculator.decode(PROMPT, max_new_tokens=LONGEST, stop_ids=[END], sampling=sampling, seed=seed).token_ids)
            for seed in range(TEXTS)
        )
    assert chance_of(counts, exact(model, sampling)) < IMPOSSIBLE
