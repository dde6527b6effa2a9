"""A drafter that has the text by heart: it guesses by the place in it, errs where it is told to, and checks what it is given."""

from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel

from trainer.config import DrafterConfig
from trainer.drafter.model import Drafter, KeysValues, choose_layer_ids, drafter_architecture

MASK = 259


class Parrot(Drafter):
    """Guesses the tokens of `text` by their positions, except for those in `slips`, which stand where it errs."""

    def __init__(
        self, model: PreTrainedModel, text: Sequence[int], block_size: int, slips: Mapping[int, int] | None = None
    ) -> None:
        knobs = DrafterConfig(block_size=block_size, layers=1, target_layers=3)
        target = model.config.get_text_config()
        super().__init__(drafter_architecture(target, knobs, choose_layer_ids(target.num_hidden_layers, knobs), MASK))
        self.head_VD = model.get_output_embeddings().weight
        self.embedding_VD = model.get_input_embeddings().weight
        self.text = [(slips or {}).get(place, token) for place, token in enumerate(text)]
        self.features: dict[int, torch.Tensor] = {}
        self.anchors: list[tuple[int, int]] = []

    def encode_context(self, features_TF: torch.Tensor, position_T: torch.Tensor) -> list[KeysValues]:
        for position, row_F in zip(position_T.tolist(), features_TF, strict=True):
            assert position not in self.features, "a place of the text is read once"
            self.features[position] = row_F.clone()
        return super().encode_context(features_TF, position_T)

    def draft(
        self, context: list[KeysValues], draft_QD: torch.Tensor, position_Q: torch.Tensor, mask_QK: torch.Tensor | None = None
    ) -> torch.Tensor:
        start = int(position_Q[0])
        assert position_Q.tolist() == list(range(start, start + self.block_size))
        assert sorted(self.features) == list(range(start)), "all that stands before the anchor, and nothing else"
        assert {len(both[0].shape) and both[0].shape[1] for both in context} == {start}
        assert (draft_QD[1:] == self.embedding_VD[MASK].to(draft_QD.dtype)).all()
        anchor = int((draft_QD[0] - self.embedding_VD.to(draft_QD.dtype)).abs().sum(1).argmin())
        self.anchors.append((start, anchor))
        wanted = [self.text[place] if place < len(self.text) else 0 for place in position_Q.tolist()]
        # A head's own row has a larger product with itself than with another row: random ones hardly point the same way.
        return torch.nn.functional.normalize(self.head_VD[wanted].float(), dim=1).to(draft_QD.dtype)
