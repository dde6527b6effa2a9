"""Our training forward against z-lab's inference forward: a batch with all its anchors at once, and one block after the other."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import DynamicCache, LlamaConfig

from tests.support.small import MASK, SHAPE, lay_out, lively_drafter, random_features, random_weights, some_of
from tests.support.talkers import FAMILIES, save_talker, talker
from tests.support.zlab import Lesson, dflash, load_reference, reference_of, study
from trainer.__main__ import main
from trainer.config import DrafterConfig
from trainer.drafter import learner, loss
from trainer.drafter.model import Drafter, choose_layer_ids, drafter_architecture
from trainer.formats.load import load_trained
from trainer.target.features import FeatureBatch
from trainer.target.tiny import MASK as MASK_OF_TALKERS

pytestmark = pytest.mark.slow(seconds=14)

CLOSE = 1e-5
LAYERS = 9  # of the target

PLAIN = {"rope_type": "default", "rope_theta": 50_000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}


def drafter_for(*, layers: int = 2, block_size: int = 8, target_layers: int = 3, **shape: Any) -> Drafter:
    """A lively drafter for a target of this shape."""
    target = LlamaConfig(**{**SHAPE, "num_hidden_layers": LAYERS, "rope_parameters": PLAIN, **shape})
    config = DrafterConfig(block_size=block_size, layers=layers, target_layers=target_layers)
    return lively_drafter(drafter_architecture(target, config, choose_layer_ids(LAYERS, config), MASK))


def features_of(drafter: Drafter, lengths: tuple[int, ...], share: float = 1.0) -> FeatureBatch:
    batch = lay_out(lengths, some_of(sum(lengths), share))
    return FeatureBatch(batch, random_features(batch, drafter.fc.in_features))


def differences(drafter: Drafter, features: FeatureBatch) -> Iterator[float]:
    """How far our training is from their inference, block by block."""
    theirs, weights = reference_of(drafter), random_weights()
    lesson = study(drafter, weights, features)
    for block in lesson.used():
        hidden_BD = draft_alone(theirs, lesson, block, weights.embedding_VD)
        yield float((hidden_BD - lesson.hidden_QD[lesson.rows(block)]).abs().max())


@torch.no_grad()
def draft_alone(theirs: Any, lesson: Lesson, block: int, embedding_VD: torch.Tensor) -> torch.Tensor:
    """One block by their model, from the features before the anchor in its document, and nothing of our masks and positions."""
    batch, size = lesson.features.batch, theirs.block_size
    anchor = int(lesson.blocks.anchor_A[block])
    start = int((batch.document_T == batch.document_T[anchor]).nonzero()[0])
    token_B = torch.full((size,), theirs.mask_token_id)
    token_B[0] = batch.token_T[anchor]
    return theirs(
        target_hidden=lesson.features.feature_TF[start:anchor][None],
        noise_embedding=F.embedding(token_B, embedding_VD)[None],
        position_ids=torch.arange(anchor - start + size)[None],
    )[0]


CASES = {
    "one layer": {"layers": 1},
    "three layers": {"layers": 3},
    "blocks of two": {"block_size": 2},
    "blocks of sixteen": {"block_size": 16},
    "one feature": {"target_layers": 1},
    "five features": {"target_layers": 5},
    "all heads keep keys": {"num_key_value_heads": 4},
    "one head keeps keys": {"num_key_value_heads": 1},
    "heads wider than the hidden size": {"head_dim": 32},
    "heads narrower than the hidden size": {"head_dim": 8},
    "a low RoPE base": {"rope_parameters": {**PLAIN, "rope_theta": 100.0}},
    "a high RoPE base": {"rope_parameters": {**PLAIN, "rope_theta": 5e6}},
    "llama3 RoPE": {"rope_parameters": LLAMA3},
    "YaRN": {"rope_parameters": YARN},
    "linear RoPE": {"rope_parameters": LINEAR},
    "a coarse norm": {"rms_norm_eps": 1e-2},
}
PACKINGS = {"unpacked": (20,), "packed": (11, 2, 8)}


@pytest.mark.parametrize("lengths", PACKINGS.values(), ids=PACKINGS)
@pytest.mark.parametrize("case", CASES)
def test_training_equals_inference(case: str, lengths: tuple[int, ...]) -> None:
    drafter = drafter_for(**CASES[case])
    worst = list(differences(drafter, features_of(drafter, lengths)))
    assert len(worst) == sum(length - 1 for length in lengths), "an anchor wherever a token follows in the same document"
    assert max(worst) <= CLOSE


heads = st.sampled_from([(4, 4), (4, 2), (4, 1), (8, 2), (16, 4)])
ropes = st.sampled_from([PLAIN, LLAMA3, YARN, LINEAR]) | st.floats(100, 1e7).map(lambda base: {**PLAIN, "rope_theta": base})


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    shape=st.fixed_dictionaries(
        {
            "layers": st.integers(1, 3),
            "block_size": st.integers(2, 17),
            "target_layers": st.integers(1, 6),
            "heads": heads,
            "head_dim": st.sampled_from([4, 8, 16, 24, 32]),
            "rope_parameters": ropes,
            "intermediate_size": st.sampled_from([32, 96, 200]),
        }
    ),
    lengths=st.lists(st.integers(2, 14), min_size=1, max_size=3),
    share=st.floats(0.4, 1.0),
)
def test_training_equals_inference_whatever_the_shape(shape: dict[str, Any], lengths: list[int], share: float) -> None:
    queries, keys = shape.pop("heads")
    drafter = drafter_for(num_attention_heads=queries, num_key_value_heads=keys, **shape)
    assert max(differences(drafter, features_of(drafter, tuple(lengths), share)), default=0.0) <= CLOSE


ANCHORS_OF_ROUNDS = (7, 8, 16, 19, 27, 40, 51)


def one_by_one(drafter: Drafter) -> tuple[Lesson, list[tuple[slice, slice]]]:
    """A lesson, and of each round of a server: the features that are new to it, and the draft positions of its block."""
    lesson = study(drafter, random_weights(), features_of(drafter, (60,)))
    blocks = [int((lesson.blocks.anchor_A == anchor).nonzero()[0]) for anchor in ANCHORS_OF_ROUNDS]
    starts = (0, *ANCHORS_OF_ROUNDS)
    return lesson, [
        (slice(start, anchor), lesson.rows(block)) for start, anchor, block in zip(starts, ANCHORS_OF_ROUNDS, blocks, strict=False)
    ]


@torch.no_grad()
def test_their_cache_over_several_rounds_equals_our_training() -> None:
    """Each round brings the features of the tokens kept since the last one, and the cache forgets the block."""
    drafter = drafter_for(layers=3, rope_parameters=LLAMA3)
    theirs, (lesson, rounds) = reference_of(drafter), one_by_one(drafter)
    cache = DynamicCache(config=theirs.config)
    for new, block in rounds:
        hidden_1BD = theirs(
            target_hidden=lesson.features.feature_TF[new][None],
            noise_embedding=lesson.draft_QD[block][None],
            position_ids=torch.arange(new.start, new.stop + 8)[None],
            past_key_values=cache,
            use_cache=True,
        )
        dflash._crop_to(cache, new.stop)
        assert float((hidden_1BD[0] - lesson.hidden_QD[block]).abs().max()) <= CLOSE


@torch.no_grad()
def test_our_own_cache_over_several_rounds_equals_our_training() -> None:
    """As our evaluation drafts: keys and values of the context grow by what each round kept."""
    drafter = drafter_for(layers=3, rope_parameters=LLAMA3)
    lesson, rounds = one_by_one(drafter)
    context: list[Any] = []
    for new, block in rounds:
        new_context = drafter.encode_context(lesson.features.feature_TF[new], torch.arange(new.start, new.stop))
        context = (
            [tuple(map(torch.cat, zip(*both, strict=True), (1, 1))) for both in zip(context, new_context, strict=True)]
            if context
            else new_context
        )
        hidden_BD = drafter.draft(context, lesson.draft_QD[block], torch.arange(new.stop, new.stop + 8))
        assert float((hidden_BD - lesson.hidden_QD[block]).abs().max()) <= CLOSE


def their_loss(theirs: Any, lesson: Lesson) -> float:
    """Cross-entropy of the logits that their loop draws drafts from, with the tokens behind the anchor, at the paper's decay."""
    batch, weights = lesson.features.batch, random_weights()
    total = weight = 0.0
    for block in lesson.used():
        anchor = int(lesson.blocks.anchor_A[block])
        # As in dflash_generate: the last B-1 rows are the drafts of the tokens at anchor+1 … anchor+B-1.
        logit_KV = draft_alone(theirs, lesson, block, weights.embedding_VD)[1 - 8 :] @ weights.head_VD.T
        for offset in range(1, 8):
            place = anchor + offset
            if place >= batch.tokens or batch.document_T[place] != batch.document_T[anchor] or not batch.supervised_T[place]:
                break
            here = math.exp(-(offset - 1) / 4)
            total += here * float(F.cross_entropy(logit_KV[offset - 1], batch.token_T[place]))
            weight += here
    return total / weight


@pytest.mark.parametrize(("late", "equal"), [(0, True), (1, False), (-1, False)])
def test_the_loss_is_that_of_their_drafts(late: int, equal: bool) -> None:
    """And would not be if each draft were held against its neighbour's token."""
    drafter = drafter_for()
    theirs = reference_of(drafter)
    drafter.register_forward_hook(lambda _, __, hidden_QD: hidden_QD.roll(late, 0))
    lesson = study(drafter, random_weights(), features_of(drafter, (37, 5, 28), share=0.8))
    assert (lesson.loss == pytest.approx(their_loss(theirs, lesson), rel=1e-5)) is equal


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_drafter_loads_strictly_and_drafts_the_same(family: str, tmp_path: Path) -> None:
    target = save_talker(talker(family), tmp_path / "target")
    shape = "--drafter.block-size 6 --drafter.layers 3 --drafter.target-layers 4 --dtype float32"
    assert main(["export", "--dry-run", "--target", target, "--output", str(tmp_path / "exported"), *shape.split()]) == 0
    ours = load_trained(str(tmp_path / "exported")).drafter
    theirs = load_reference(tmp_path / "exported")
    assert (theirs.block_size, theirs.mask_token_id, theirs.target_layer_ids) == (6, MASK_OF_TALKERS, [1, 2, 4, 5])
    assert theirs.state_dict().keys() == ours.state_dict().keys()
    features = features_of(ours, (20,))
    lesson = study(ours, random_weights(), features)
    for block in lesson.used():
        hidden_BD = draft_alone(theirs, lesson, block, random_weights().embedding_VD)
        assert float((hidden_BD - lesson.hidden_QD[lesson.rows(block)]).abs().max()) <= CLOSE


# What others got wrong (dflash.md, section 3), done to ours on purpose: module, function, and what it gives instead.
BREAKS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "the anchor's own feature is seen": (
        loss,
        "attention_mask",
        lambda real, batch, blocks: real(batch, replace(blocks, anchor_A=blocks.anchor_A + 1)),
    ),
    "the last feature before the anchor is not seen": (
        loss,
        "attention_mask",
        lambda real, batch, blocks: real(batch, replace(blocks, anchor_A=blocks.anchor_A - 1)),
    ),
    "other documents are seen": (
        loss,
        "attention_mask",
        lambda real, batch, blocks: real(replace(batch, document_T=torch.zeros_like(batch.document_T)), blocks),
    ),
    "other blocks are seen": (
        loss,
        "attention_mask",
        lambda real, batch, blocks: torch.cat(
            [mask := real(batch, blocks)[:, : batch.tokens], torch.ones(len(mask), len(mask), dtype=torch.bool)], dim=1
        ),
    ),
    "a block looks back only": (
        loss,
        "attention_mask",
        lambda real, batch, blocks: real(batch, blocks).tril(batch.tokens),
    ),
    "positions count on through the batch": (
        learner,
        "build_blocks",
        lambda real, batch, *more: replace(blocks := real(batch, *more), position_AB=blocks.index_AB),
    ),
    "positions are late by one": (
        learner,
        "build_blocks",
        lambda real, *given: replace(blocks := real(*given), position_AB=blocks.position_AB + 1),
    ),
}


@pytest.mark.parametrize("case", BREAKS)
def test_a_wrong_forward_is_found(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = drafter_for()
    features = features_of(drafter, PACKINGS["packed"])
    module, name, broken = BREAKS[case]
    monkeypatch.setattr(module, name, partial(broken, getattr(module, name)))
    assert max(differences(drafter, features)) > 1000 * CLOSE
