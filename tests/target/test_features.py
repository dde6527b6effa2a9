"""Batches in, features out: they are the target's own, whatever is packed beside whatever on however many threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from tests.support.small import SHAPE, lay_out
from trainer.data.batches import TokenBatch
from trainer.target.features import FeatureBatch, FeatureExtractor, FeatureRing, borrow_weights

CPU = torch.device("cpu")
LAYERS = (1, 2, 4)
WIDTH = len(LAYERS) * SHAPE["hidden_size"]
LENGTHS = (40, 1, 25, 33)
# A window shorter than the documents, so that it matters; Gemma's later ones alternate it with full attention.
FAMILIES = {
    "Llama": ("LlamaForCausalLM", {}),
    "Qwen2": ("Qwen2ForCausalLM", {}),
    "Qwen3": ("Qwen3ForCausalLM", {}),
    "Mistral": ("MistralForCausalLM", {"sliding_window": 16}),
    "Gemma": ("GemmaForCausalLM", {}),
    "Gemma2": ("Gemma2ForCausalLM", {"sliding_window": 16}),
    "Gemma3": (
        "Gemma3ForCausalLM",
        {"sliding_window": 16, "layer_types": [*["sliding_attention", "full_attention"] * 3, "sliding_attention"]},
    ),
}


def model_of(family: str) -> PreTrainedModel:
    name, extra = FAMILIES[family]
    kind = getattr(transformers, name)
    torch.manual_seed(3)
    model: PreTrainedModel = kind(kind.config_class(**SHAPE, **extra)).eval()
    with torch.no_grad():
        for weight in model.parameters():  # as made, layers hardly change what they are given
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


@pytest.fixture(params=FAMILIES)
def family_model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return model_of(request.param)


@pytest.fixture
def model() -> PreTrainedModel:
    return model_of("Llama")


def target_on(model: PreTrainedModel, *, slots: int = 3, tokens: int = 128, device: torch.device = CPU) -> FeatureExtractor:
    return FeatureExtractor(model, LAYERS, FeatureRing(slots, tokens, WIDTH, torch.float32, device))


def features_of(target: FeatureExtractor, batch: TokenBatch) -> FeatureBatch:
    return next(target.extract(iter([batch])))


def own_features(model: PreTrainedModel, batch: TokenBatch) -> torch.Tensor:
    """What the whole model says of each document alone, by transformers' own reporting."""
    documents = []
    with torch.no_grad():
        for document in batch.document_T.unique():
            token_ids = batch.token_T[batch.document_T == document]
            states = model(token_ids[None], output_hidden_states=True).hidden_states
            documents.append(torch.cat([states[layer + 1][0] for layer in LAYERS], dim=1))
    return torch.cat(documents)


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def forbid(module: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*_: object, **__: object) -> NoReturn:
        raise AssertionError("this module is not needed")

    monkeypatch.setattr(module, "forward", called)


def test_packed_features_are_the_targets_own_for_each_document_alone(family_model: PreTrainedModel) -> None:
    batch = lay_out(LENGTHS)
    wanted = own_features(family_model, batch)
    assert wanted.std() > 0.1
    assert_close(features_of(target_on(family_model), batch).feature_TF, wanted)


def test_packed_and_unpacked_features_are_equal(family_model: PreTrainedModel) -> None:
    target, batch = target_on(family_model), lay_out(LENGTHS)
    packed = features_of(target, batch).feature_TF
    for document in range(len(LENGTHS)):
        rows = batch.document_T == document
        alone = TokenBatch(
            0, batch.token_T[rows], batch.supervised_T[rows], batch.position_T[rows], batch.document_T[rows] * 0, 1, batch.after
        )
        features = features_of(target, alone)
        assert_close(features.feature_TF, packed[rows])
        features.release()


def test_a_document_sees_nothing_of_another(family_model: PreTrainedModel) -> None:
    target, batch = target_on(family_model), lay_out(LENGTHS)
    before = features_of(target, batch).feature_TF
    batch.token_T[:40] = batch.token_T[:40].flip(0)
    after = features_of(target, batch).feature_TF
    assert not torch.equal(after[:40], before[:40])
    assert torch.equal(after[40:], before[40:])


def test_it_stops_after_the_deepest_tapped_layer(family_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for needless in (*family_model.model.layers[max(LAYERS) + 1 :], family_model.model.norm, family_model.lm_head):
        forbid(needless, monkeypatch)
    features_of(target_on(family_model), lay_out(LENGTHS))


def test_the_deepest_tapped_layer_itself_runs(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(model.model.layers[max(LAYERS)], monkeypatch)
    with pytest.raises(AssertionError, match="not needed"):
        features_of(target_on(model), lay_out(LENGTHS))


def test_the_whole_model_works_on_unchanged_beside_it(family_model: PreTrainedModel) -> None:
    batch = lay_out(LENGTHS)
    token_ids = batch.token_T[None, :40]
    with torch.no_grad():
        before = family_model(token_ids, output_hidden_states=True)
        features = features_of(target_on(family_model), batch)
        kept = features.feature_TF.clone()
        after = family_model(token_ids, output_hidden_states=True)
    assert torch.equal(after.logits, before.logits)
    assert len(after.hidden_states) == len(before.hidden_states) == 8
    assert family_model.config.num_hidden_layers == len(family_model.model.layers) == 7
    assert torch.equal(features.feature_TF, kept), "whoever runs the whole model does not write into our features"


def test_several_threads_use_one_target_at_once(model: PreTrainedModel) -> None:
    target = target_on(model, slots=20)
    batches = [lay_out((9 + seq, 20), seq=seq) for seq in range(20)]
    start = threading.Barrier(5)

    def extract(mine: list[TokenBatch]) -> list[FeatureBatch]:
        start.wait()
        return list(target.extract(iter(mine)))

    def run_the_whole_model() -> None:
        start.wait()
        with torch.no_grad():
            for batch in batches:
                model(batch.token_T[None])

    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(extract, batches[first::4]) for first in range(4)]
        pool.submit(run_the_whole_model).result()
        done = {features.seq: features for job in jobs for features in job.result()}
    for batch in batches:
        assert_close(done[batch.seq].feature_TF, own_features(model, batch))


def test_two_targets_on_one_model_do_not_write_into_each_other(model: PreTrainedModel) -> None:
    one, other = target_on(model), target_on(model)
    batch = lay_out(LENGTHS)
    features = features_of(one, batch)
    kept = features.feature_TF.clone()
    features_of(other, lay_out((99,), seq=1))
    assert torch.equal(features.feature_TF, kept)


def slots_of(ring: FeatureRing, count: int) -> set[int]:
    """Where the slots lie, all of them free."""
    taken = [ring.take(1) for _ in range(count)]
    for _, release in taken:
        release()
    return {slot.data_ptr() for slot, _ in taken}


def test_features_land_in_the_rings_slots_and_come_back(model: PreTrainedModel) -> None:
    ring = FeatureRing(2, 128, WIDTH, torch.float32, CPU)
    slots = slots_of(ring, 2)
    target = FeatureExtractor(model, LAYERS, ring)
    seen = set()
    for features in target.extract(lay_out(LENGTHS, seq=seq) for seq in range(5)):
        assert features.feature_TF.shape == (sum(LENGTHS), WIDTH)
        assert features.feature_TF.is_contiguous()
        seen.add(features.feature_TF.data_ptr())
        features.release()
    assert seen == slots
    assert slots_of(ring, 2) == slots


def test_an_exhausted_ring_says_so(model: PreTrainedModel) -> None:
    batches = target_on(model, slots=2).extract(lay_out(LENGTHS, seq=seq) for seq in range(3))
    first, second = next(batches), next(batches)
    assert first.feature_TF.data_ptr() != second.feature_TF.data_ptr()
    with pytest.raises(RuntimeError, match="no free slot"):
        next(batches)


def test_features_for_another_device_are_copied_there(model: PreTrainedModel) -> None:
    """`cpu:0` is not equal to `cpu` and so plays the other device."""
    batch = lay_out(LENGTHS)
    features = features_of(target_on(model, device=torch.device("cpu", 0)), batch)
    assert_close(features.feature_TF, own_features(model, batch))


def test_gradients_are_off_inside_and_only_there(model: PreTrainedModel) -> None:
    inside = []
    model.model.layers[0].register_forward_hook(lambda *_: inside.append(torch.is_grad_enabled()))
    batches = target_on(model).extract(lay_out(LENGTHS, seq=seq) for seq in range(2))
    features = next(batches)
    assert torch.is_grad_enabled(), "the generator is suspended and its settings are not the reader's"
    assert not features.feature_TF.requires_grad
    with torch.no_grad():
        next(batches)
        assert not torch.is_grad_enabled()
    assert inside == [False, False]


def test_a_batch_of_features_counts_its_bytes(model: PreTrainedModel) -> None:
    batch = lay_out((7,), seq=3)
    features = features_of(target_on(model), batch)
    assert features.nbytes == batch.nbytes + 7 * WIDTH * 4
    assert features.seq == 3


def test_borrowed_weights_are_the_models_own(family_model: PreTrainedModel) -> None:
    weights = borrow_weights(family_model, CPU)
    assert weights.embedding_VD.data_ptr() == family_model.model.embed_tokens.weight.data_ptr()
    assert weights.head_VD.data_ptr() == family_model.lm_head.weight.data_ptr()
    assert not weights.embedding_VD.requires_grad
    assert not weights.head_VD.requires_grad


def last_of(model: PreTrainedModel, batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """The last hidden states and the logits of each document alone, as the whole model reports them."""
    states, logits = [], []
    with torch.no_grad():
        for document in batch.document_T.unique():
            out = model(batch.token_T[batch.document_T == document][None], output_hidden_states=True)
            states.append(out.hidden_states[-1][0])
            logits.append(out.logits[0])
    return torch.cat(states), torch.cat(logits)


def with_last(model: PreTrainedModel, *, slots: int = 3, device: torch.device = CPU) -> FeatureExtractor:
    ring = FeatureRing(slots, 128, WIDTH + SHAPE["hidden_size"], torch.float32, device)
    return FeatureExtractor(model, LAYERS, ring, keep_last=True)


@pytest.mark.parametrize("device", [CPU, torch.device("cpu", 0)], ids=["here", "another device"])
def test_the_last_hidden_state_is_what_the_targets_head_reads(family_model: PreTrainedModel, device: torch.device) -> None:
    batch = lay_out(LENGTHS)
    features = features_of(with_last(family_model, device=device), batch)
    state_TD, logit_TV = last_of(family_model, batch)
    assert features.last_TD is not None
    assert_close(features.last_TD, state_TD)
    said_TV = features.last_TD @ family_model.lm_head.weight.T
    if cap := getattr(family_model.config, "final_logit_softcapping", None):
        assert (said_TV - logit_TV).abs().max() > 0.01, "why distillation refuses such a target"
        said_TV = cap * torch.tanh(said_TV / cap)
    assert_close(said_TV, logit_TV)


def test_keeping_it_changes_no_feature(family_model: PreTrainedModel) -> None:
    batch = lay_out(LENGTHS)
    assert torch.equal(
        features_of(with_last(family_model), batch).feature_TF, features_of(target_on(family_model), batch).feature_TF
    )


def test_unless_wanted_there_is_none(model: PreTrainedModel) -> None:
    assert features_of(target_on(model), lay_out(LENGTHS)).last_TD is None


def test_features_and_last_hidden_state_share_a_slot(model: PreTrainedModel) -> None:
    batch = lay_out((7,))
    target = with_last(model, slots=1)
    features = features_of(target, batch)
    assert features.last_TD is not None
    assert features.last_TD.data_ptr() == features.feature_TF[0, -1:].data_ptr() + 4
    assert features.nbytes == batch.nbytes + 7 * (WIDTH + SHAPE["hidden_size"]) * 4
    features.release()
    features_of(target, batch)


def test_threads_keep_their_own_last_hidden_states(model: PreTrainedModel) -> None:
    target = with_last(model, slots=12)
    batches = [lay_out((9 + seq, 20), seq=seq) for seq in range(12)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda batch: features_of(target, batch), batches))
    for batch, features in zip(batches, done, strict=True):
        assert features.last_TD is not None
        assert_close(features.last_TD, last_of(model, batch)[0])
