"""What training learns from against what z-lab's decoding loop gives a drafter and asks of it, on the very same tokens.

The loop runs with a drafter that notes all it is given and proposes what training holds to be right: if layers, labels or the loss
mask were off by one, the loop would give other features, accept nothing, or say tokens that training does not ask for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.support.talkers import FAMILIES, SHAPE, answers_of, conversations_of, talker, tiny_chat
from tests.support.zlab import Lesson, decode, dflash, study
from trainer.config import DrafterConfig
from trainer.data import samples
from trainer.data.batches import TokenBatch, pack
from trainer.data.chat_template import Tokenised
from trainer.data.samples import Tokeniser, Visit
from trainer.drafter import learner, loss
from trainer.drafter.model import Drafter, drafter_architecture, spread_layer_ids
from trainer.target.features import FeatureExtractor, FeatureRing, borrow_weights
from trainer.target.tiny import END, MASK

pytestmark = pytest.mark.slow(seconds=20)

BLOCK, LAYER_IDS = 8, (1, 3, 5)


@dataclass(frozen=True)
class Round:
    """What the loop gave the drafter: new features, their positions and the block's, and the block's embeddings."""

    feature_ND: torch.Tensor
    position_N: list[int]
    block_BD: torch.Tensor


class Listener(dflash.DFlashDraftModel):
    """Notes what the loop gives it, and proposes `script(position of the anchor)` whatever its weights say."""

    def listen(self, script: Callable[[int], list[int]]) -> None:
        self.script, self.rounds, self.anchor = script, list[Round](), -1

    def forward(self, **given: Any) -> torch.Tensor:
        feature_1ND, block_1BD, position_1N = (given[name] for name in ("target_hidden", "noise_embedding", "position_ids"))
        self.anchor = int(position_1N[0, feature_1ND.shape[1]])
        self.rounds.append(Round(feature_1ND[0].clone(), position_1N[0].tolist(), block_1BD[0].clone()))
        return super().forward(**given)

    def compute_logits(self, hidden: torch.Tensor, output_head: Any) -> torch.Tensor:
        said = torch.tensor(self.script(self.anchor))
        return F.one_hot(said, self.config.vocab_size).float()[None, : hidden.shape[1]]


@dataclass(frozen=True)
class Meeting:
    """A target with conversations of its own, and a fresh drafter for it."""

    model: Any
    rows: list[dict[str, Any]]
    drafter: Drafter
    prompts: list[list[int]]

    def lesson(self, *, layer_ids: Sequence[int] = LAYER_IDS, keep_last: bool = False) -> Lesson:
        """The conversations' road through the product, from text to the drafter, all packed into one batch."""
        visits = (Visit(row, index, 0, index) for index, row in enumerate(self.rows))
        (batch,) = pack(Tokeniser(tiny_chat(), lambda *_: None)(visits), token_budget=512)
        ring = FeatureRing(1, 512, (len(layer_ids) + keep_last) * SHAPE["hidden_size"], torch.float32, torch.device("cpu"))
        (features,) = FeatureExtractor(self.model, tuple(layer_ids), ring, keep_last=keep_last).extract(iter([batch]))
        return study(self.drafter, borrow_weights(self.model, torch.device("cpu")), features)

    def loop(self, document: int, script: Callable[[int], list[int]]) -> tuple[Any, list[Round]]:
        """Their loop over one conversation's prompt."""
        listener = Listener(self.drafter.config).eval()
        listener.load_state_dict(self.drafter.state_dict())
        listener.listen(script)
        stats = decode(listener, self.model, self.prompts[document], max_new_tokens=100, stop_ids=[END])
        return stats, listener.rounds


def meeting(family: str, seed: int = 11) -> Meeting:
    model, chat = talker(family, seed), tiny_chat()
    rows = [{"messages": messages} for messages in conversations_of(model, chat, count=2, tokens=(12, 40))]
    config = DrafterConfig(block_size=BLOCK, layers=2, target_layer_ids=LAYER_IDS)
    torch.manual_seed(3)
    drafter = Drafter(drafter_architecture(model.config, config, LAYER_IDS, MASK))
    prompts = [list(chat.prompt_ids(row["messages"][:-1])) for row in rows]
    return Meeting(model, rows, drafter, prompts)


@pytest.fixture(scope="module")
def llama() -> Meeting:
    return meeting("Llama")


def compare(met: Meeting, lesson: Lesson, document: int) -> None:
    """Fail unless the loop over a conversation is what training makes of it."""
    batch = lesson.features.batch
    mine = (batch.document_T == document).nonzero().squeeze(1)
    start = int(mine[0])
    told: dict[int, int] = {}

    def script(anchor: int) -> list[int]:
        """As many of the tokens that training asks for as this round's turn allows, then what is never right."""
        block = block_at(lesson, start + anchor)
        if block is None:
            return [MASK] * (BLOCK - 1)
        told[anchor] = min(int(lesson.blocks.valid_AB[block].sum()), (7, 0, 3, 6, 7, 1)[len(told) % 6])
        return [*lesson.blocks.label_AB[block, 1 : 1 + told[anchor]].tolist(), *[MASK] * BLOCK][: BLOCK - 1]

    stats, rounds = met.loop(document, script)
    said = stats.output_ids[0].tolist()
    assert batch.token_T[mine][: len(said)].tolist() == said, "the very same tokens"
    supervised = batch.supervised_T[mine].nonzero().squeeze(1).tolist()
    assert supervised == list(range(stats.num_input_tokens, len(said))), "the mask is what the loop says, the end included"
    eligible = [place for place in lesson.used_places() if batch.document_T[place] == document]
    assert eligible == [start + place for place in supervised[:-1]], "anchors wherever the loop could draft from"
    read = 0
    for heard, kept in zip(rounds, stats.acceptance_lengths, strict=True):
        anchor = read + len(heard.feature_ND)
        valid = same_round(lesson, heard, start, read, anchor)
        assert kept == min(told[anchor] + 1, len(said) - 1 - anchor), "the labels are the tokens that the loop accepts there"
        assert valid == min(BLOCK - 1, len(said) - 1 - anchor), "asked for up to the end and no further"
        read = anchor


def block_at(lesson: Lesson, place: int) -> int | None:
    return next((number for number in lesson.used() if int(lesson.blocks.index_AB[number, 0]) == place), None)


def same_round(lesson: Lesson, heard: Round, start: int, read: int, anchor: int) -> int:
    """Features seen, positions, embeddings of anchor and masks. Returns how many guesses training asks for."""
    block = block_at(lesson, start + anchor)
    assert block is not None
    context = lesson.context(block)
    assert context.tolist() == list(range(start, start + anchor)), "everything before the anchor and nothing of it"
    feature_TF = lesson.features.feature_TF[context]
    torch.testing.assert_close(feature_TF[read:], heard.feature_ND, rtol=0, atol=1e-4)
    positions = [*lesson.features.batch.position_T[context][read:].tolist(), *lesson.draft_position_Q[lesson.rows(block)].tolist()]
    assert positions == heard.position_N, "positions as in the loop"
    assert torch.equal(lesson.draft_QD[lesson.rows(block)], heard.block_BD), "the anchor's token and masks"
    return int(lesson.blocks.valid_AB[block].sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_training_sees_and_asks_for_what_the_loop_does(family: str) -> None:
    met = meeting(family, seed=11 if family != "Qwen3" else 13)
    lesson = met.lesson()
    for document in range(len(met.rows)):
        compare(met, lesson, document)


def test_distillation_learns_from_what_the_loop_compares_drafts_with(llama: Meeting) -> None:
    """The last hidden state one place before a token makes the target say that token."""
    lesson = llama.lesson(keep_last=True)
    batch, last_TD = lesson.features.batch, lesson.features.last_TD
    compare(llama, lesson, 1)
    said_T = (last_TD @ llama.model.lm_head.weight.T).argmax(1)
    supervised = batch.supervised_T.nonzero().squeeze(1)
    assert torch.equal(said_T[supervised - 1], batch.token_T[supervised])


@pytest.mark.parametrize("layers", [5, 6, 7, 8, 12, 16, 24, 28, 30, 32, 36, 40, 48, 64, 80])
def test_layer_ids_are_those_of_their_rule(layers: int) -> None:
    for count in range(1, layers - 2):
        assert list(spread_layer_ids(layers, count)) == dflash.build_target_layer_ids(layers, count)


def test_their_loop_says_what_the_target_says_alone(llama: Meeting) -> None:
    """So that what is compared above is the target's own text."""
    stats, _ = llama.loop(0, lambda _: [MASK] * 7)
    assert stats.output_ids[0].tolist() == llama.prompts[0] + answers_of(llama.model, llama.prompts[:1], 100)[0]
    assert set(stats.acceptance_lengths) == {1}


def shifted_mask(by: int) -> Callable[..., Any]:
    def tokenise(real: Callable[..., Any], *given: Any) -> Any:
        right = real(*given)
        mask = right.loss_mask.copy()
        mask[:] = False
        places = right.loss_mask.nonzero()[0] + by
        mask[places[places < len(mask)]] = True
        return Tokenised(right.token_ids, mask)

    return tokenise


def without_end(real: Callable[..., Any], *given: Any) -> Any:
    right = real(*given)
    mask = right.loss_mask.copy()
    mask[right.loss_mask.nonzero()[0][-1]] = False
    return Tokenised(right.token_ids, mask)


def relabelled(by: int, slots: slice) -> Callable[..., Any]:
    def lay(real: Callable[..., Any], batch: TokenBatch, *given: Any) -> Any:
        right = real(batch, *given)
        label_AB = right.label_AB.clone()
        label_AB[:, slots] = batch.token_T[(right.index_AB[:, slots] + by).clamp(0, batch.tokens - 1)]
        return replace(right, label_AB=label_AB)

    return lay


# What others got wrong, done to ours on purpose: module, function, what stands in for it, and what is found.
BREAKS: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "labels late by one": (learner, "build_blocks", relabelled(1, slice(1, None)), "labels are the tokens"),
    "labels early by one": (learner, "build_blocks", relabelled(-1, slice(1, None)), "labels are the tokens"),
    "a block begins with the token behind the anchor": (learner, "build_blocks", relabelled(1, slice(1)), "anchor's token"),
    "loss mask late by one": (samples, "tokenise", shifted_mask(1), "the mask is what"),
    "loss mask early by one": (samples, "tokenise", shifted_mask(-1), "the mask is what"),
    "the end of the answer is not learnt": (samples, "tokenise", without_end, "the mask is what"),
    "the feature at the anchor is seen": (
        loss,
        "attention_mask",
        lambda real, batch, blocks: real(batch, replace(blocks, anchor_A=blocks.anchor_A + 1)),
        "nothing of it",
    ),
    "the feature before the anchor is not seen": (
        loss,
        "attention_mask",
        lambda real, batch, blocks: real(batch, replace(blocks, anchor_A=blocks.anchor_A - 1)),
        "nothing of it",
    ),
    "positions late by one": (
        learner,
        "build_blocks",
        lambda real, *given: replace(right := real(*given), position_AB=right.position_AB + 1),
        "positions as in the loop",
    ),
    "the last guess is not asked for": (
        learner,
        "build_blocks",
        lambda real, *given: replace(
            right := real(*given), valid_AB=right.valid_AB & (torch.arange(BLOCK) < BLOCK - 1).expand_as(right.valid_AB)
        ),
        "asked for up to the end",
    ),
}


@pytest.mark.parametrize("case", BREAKS)
def test_an_off_by_one_is_found(case: str, llama: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, broken, found = BREAKS[case]
    monkeypatch.setattr(module, name, partial(broken, getattr(module, name)))
    with pytest.raises(AssertionError, match=found):
        compare(llama, llama.lesson(), 1)


@pytest.mark.parametrize("by", [-1, 1])
def test_layers_off_by_one_are_found(by: int, llama: Meeting) -> None:
    with pytest.raises(AssertionError, match="not close"):
        compare(llama, llama.lesson(layer_ids=[layer + by for layer in LAYER_IDS]), 1)
