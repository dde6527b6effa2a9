"""trainer/decoding/speculative.py: the target's own words, whatever is drafted, and true figures of what the drafts were worth."""

import copy
from collections.abc import Iterator, Sequence

import pytest
import torch
from transformers import PreTrainedModel

from tests.support.parrot import Parrot
from tests.support.small import lively_drafter
from tests.support.talkers import talker
from trainer.decoding.acceptance_length import Round
from trainer.decoding.sampling import Sampling
from trainer.decoding.speculative import Decoded, SpeculativeDecoder, decode_alone, prepare_for_decoding
from trainer.target.tiny import tiny_model

PROMPT = [ord(letter) for letter in "What is a drafter?"]
AT = len(PROMPT)
MOST = 40
NEVER: tuple[int, ...] = ()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them only get in each other's way over tensors this small
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model().requires_grad_(False)


@pytest.fixture(scope="module")
def truth(model: PreTrainedModel) -> list[int]:
    """What the target says, far beyond its end."""
    return transformers_own(model, PROMPT, MOST, NEVER)


def transformers_own(model: PreTrainedModel, prompt_ids: Sequence[int], most: int, stop_ids: Sequence[int]) -> list[int]:
    stop = list(stop_ids) or None
    said = model.generate(torch.tensor([list(prompt_ids)]), do_sample=False, max_new_tokens=most, eos_token_id=stop, pad_token_id=0)
    return list(said[0, len(prompt_ids) :].tolist())


def drafted(model: PreTrainedModel, drafter: Parrot, most: int = MOST, stop_ids: Sequence[int] = NEVER) -> Decoded:
    with SpeculativeDecoder(model, drafter) as speculator:
        return speculator.decode(PROMPT, max_new_tokens=most, stop_ids=stop_ids)


@pytest.mark.parametrize(
    ("family", "block_size"), [("Llama", 5), ("Mistral, sliding", 2), ("Mistral, sliding", 16), ("Gemma 3", 5), ("Gemma 3", 16)]
)
def test_greedy_text_is_the_targets_own_whatever_is_drafted(family: str, block_size: int) -> None:
    """Through a window of 24 tokens, with slips at irregular places, so that every kind of cut of the cache happens."""
    model = talker(family, num_hidden_layers=6)
    own = transformers_own(model, PROMPT, MOST, NEVER)
    assert decode_alone(model, PROMPT, max_new_tokens=MOST, stop_ids=NEVER).token_ids == own
    text = [*PROMPT, *own]
    slips = {place: 7 for place in range(AT, len(text)) if place * place % 11 in (3, 5)}
    said = drafted(model, Parrot(model, text, block_size, slips))
    assert said.token_ids == own
    assert {one.kept for one in said.rounds} > {1}, "or nothing was shown"
    assert sum(one.kept for one in said.rounds) == len(own) - 1


def test_the_drafter_reads_the_features_of_all_that_stands_before_the_anchor(model: PreTrainedModel, truth: list[int]) -> None:
    drafter = Parrot(model, [*PROMPT, *truth], 5, slips={AT + 3: 7, AT + 4: 7, AT + 17: 7})
    drafted(model, drafter)
    assert [anchor for _, anchor in drafter.anchors] == [truth[place - AT] for place, _ in drafter.anchors]
    layers = model(torch.tensor([PROMPT + truth]), output_hidden_states=True).hidden_states
    for position, row_F in drafter.features.items():
        wanted_F = torch.cat([layers[1 + layer][0, position] for layer in drafter.config.dflash_config["target_layer_ids"]])
        torch.testing.assert_close(row_F, wanted_F, atol=1e-4, rtol=1e-4)


def rounds(model: PreTrainedModel, truth: list[int], slips: Sequence[int], most: int, stop: int | None = None) -> list[Round]:
    """Rounds of blocks of 5 whose text is as long as `most`, or ends with token number `stop`; slips are by number, too."""
    text = list(truth)
    stop_ids = [] if stop is None else [text[stop]]
    assert not set(stop_ids) & set(text[:stop]), "or it would end before"
    parrot = Parrot(model, [*PROMPT, *text], 5, {AT + slip: 7 for slip in slips})
    said = drafted(model, parrot, most, stop_ids)
    assert said.token_ids == text[: most if stop is None else stop + 1]
    return list(said.rounds)


@pytest.fixture
def distinct(model: PreTrainedModel, truth: list[int]) -> int:
    """The number, between 7 and 9, of a token that the answer has not said before."""
    return next(number for number in (7, 8, 9) if truth[number] not in truth[:number])


def test_a_round_keeps_what_agrees_and_one_more(model: PreTrainedModel, truth: list[int]) -> None:
    assert rounds(model, truth, [], 11) == [Round(4, 4, 5), Round(4, 4, 5)]
    assert rounds(model, truth, [1], 7) == [Round(4, 0, 1), Round(4, 4, 5)]
    assert rounds(model, truth, [3, 4], 10) == [Round(4, 2, 3), Round(4, 0, 1), Round(4, 4, 5)]


def test_nothing_is_drafted_beyond_the_most_tokens(model: PreTrainedModel, truth: list[int]) -> None:
    assert rounds(model, truth, [], 9)[-1] == Round(3, 3, 3), "no room for a token more"
    assert rounds(model, truth, [7], 9)[-1] == Round(1, 1, 1)
    assert rounds(model, truth, [], 1) == []


def test_a_text_that_ends_asked_for_no_guess_behind_its_end(model: PreTrainedModel, truth: list[int], distinct: int) -> None:
    inside = distinct - 5  # its place in the second block
    assert rounds(model, truth, [], MOST, stop=distinct) == [Round(4, 4, 5), Round(inside, inside, inside)]


def test_an_end_that_was_not_guessed_counts_as_a_guess_gone_wrong(model: PreTrainedModel, truth: list[int], distinct: int) -> None:
    inside = distinct - 5
    assert rounds(model, truth, [distinct], MOST, stop=distinct)[-1] == Round(inside, inside - 1, inside)


def test_an_end_behind_a_whole_block_was_no_guess(model: PreTrainedModel, truth: list[int], distinct: int) -> None:
    parrot = Parrot(model, [*PROMPT, *truth], distinct)
    said = drafted(model, parrot, MOST, [truth[distinct]])
    assert said.rounds == (Round(distinct - 1, distinct - 1, distinct),)


def test_an_answer_may_end_with_its_first_token(model: PreTrainedModel, truth: list[int]) -> None:
    said = drafted(model, Parrot(model, [*PROMPT, *truth], 5), MOST, [truth[0]])
    assert (said.token_ids, said.rounds) == (truth[:1], ())
    assert said.tokens_per_second == 0.0


def test_it_is_asked_before_every_round_whether_to_give_up(model: PreTrainedModel, truth: list[int]) -> None:
    answers = iter([False, False, True])
    with SpeculativeDecoder(model, Parrot(model, [*PROMPT, *truth], 5)) as speculator:
        said = speculator.decode(PROMPT, max_new_tokens=MOST, stop_ids=NEVER, give_up=lambda: next(answers))
    assert said.token_ids == truth[:11]


def test_a_closed_one_leaves_the_target_as_it_was(model: PreTrainedModel) -> None:
    def hooks() -> int:
        return sum(len(module._forward_hooks) for module in model.modules())

    before = hooks()
    with SpeculativeDecoder(model, Parrot(model, PROMPT, 5)):
        assert hooks() == before + 3
    assert hooks() == before


def test_sampled_text_comes_from_its_seed(model: PreTrainedModel, truth: list[int]) -> None:
    warm = Sampling(temperature=1.5)
    with SpeculativeDecoder(model, lively_drafter(Parrot(model, [], 5).config)) as speculator:

        def said(seed: int) -> list[int]:
            return speculator.decode(PROMPT, max_new_tokens=12, stop_ids=NEVER, sampling=warm, seed=seed).token_ids

        assert said(1) == said(1)
        assert said(1) != said(2)
    alone = [
        decode_alone(model, PROMPT, max_new_tokens=12, stop_ids=NEVER, sampling=warm, seed=seed).token_ids for seed in (1, 1, 2)
    ]
    assert alone[0] == alone[1] != alone[2]


def test_rates_leave_the_first_token_out() -> None:
    assert Decoded(token_ids=[1] * 11, rounds=(), prefill_seconds=9.0, decode_seconds=2.0).tokens_per_second == 5.0


class TestPrecision:
    def test_matrices_cast_once_draft_the_same_bits_as_under_autocast_alone(self) -> None:
        narrow = tiny_model(torch.bfloat16)
        drafter = lively_drafter(Parrot(narrow, [], 5).config)
        before = {name: weight.clone() for name, weight in drafter.state_dict().items()}
        seated = prepare_for_decoding(copy.deepcopy(drafter), narrow)
        assert {name: weight.dtype for name, weight in seated.named_parameters() if weight.dtype == torch.float32}.keys() == {
            name for name, weight in drafter.named_parameters() if weight.ndim == 1
        }
        feature_TF = torch.randn(9, 3 * 64, generator=torch.Generator().manual_seed(1)).bfloat16()
        draft_QD = torch.randn(5, 64, generator=torch.Generator().manual_seed(2))
        hidden = []
        for one in (drafter, seated):
            with SpeculativeDecoder(narrow, one) as speculator, speculator.autocast, torch.no_grad():
                hidden.append(one.draft(one.encode_context(feature_TF, torch.arange(9)), draft_QD, torch.arange(9, 14)))
        assert torch.equal(hidden[0], hidden[1])
        assert hidden[0].dtype == torch.float32
        assert all(torch.equal(before[name], weight) for name, weight in drafter.state_dict().items())

    @pytest.mark.parametrize("drafts_in", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("says_in", [torch.float32, torch.bfloat16])
    def test_every_pair_decodes(self, drafts_in: torch.dtype, says_in: torch.dtype) -> None:
        model = tiny_model(says_in).requires_grad_(False)
        drafter = lively_drafter(Parrot(model, [], 5).config)
        for weight in drafter.parameters():
            weight.data = weight.data.to(drafts_in)
        with SpeculativeDecoder(model, prepare_for_decoding(drafter, model)) as speculator:
            said = speculator.decode(PROMPT, max_new_tokens=12, stop_ids=NEVER)
        assert said.token_ids[:4] == decode_alone(model, PROMPT, max_new_tokens=4, stop_ids=NEVER).token_ids

    def test_a_drafter_in_bfloat16_is_widened_beside_a_float32_target(self, model: PreTrainedModel) -> None:
        drafter = lively_drafter(Parrot(model, [], 5).config)
        for weight in drafter.parameters():
            weight.data = weight.data.bfloat16()
        stored = {name: weight.clone() for name, weight in drafter.state_dict().items()}
        frequencies = drafter.rotary.inv_freq.clone()
        prepare_for_decoding(drafter, model)
        assert {weight.dtype for weight in drafter.parameters()} == {torch.float32}
        assert all(torch.equal(stored[name].float(), weight) for name, weight in drafter.state_dict().items())
        assert torch.equal(drafter.rotary.inv_freq, frequencies)
