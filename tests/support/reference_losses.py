"""The objectives once more, the slow and obvious way: whole logits, one block and one guess at a time, ordinary autograd."""

import math

import torch
from torch.nn import functional as F

from trainer.data.batches import TokenBatch
from trainer.drafter.anchors import Blocks, attention_mask
from trainer.drafter.model import Drafter
from trainer.target.features import TargetWeights


class Guesses:
    """What a drafter says at each draft position of a batch, and what is asked of it."""

    def __init__(
        self, drafter: Drafter, weights: TargetWeights, batch: TokenBatch, feature_TF: torch.Tensor, blocks: Blocks, size: int
    ) -> None:
        anchors = len(blocks.anchor_A)
        token_AB = torch.full((anchors, size), drafter.mask_token_id)
        token_AB[:, 0] = batch.token_T[blocks.anchor_A]
        draft_QD = F.embedding(token_AB.flatten(), weights.embedding_VD)
        hidden_QD = drafter(feature_TF, batch.position_T, draft_QD, blocks.position_AB.flatten(), attention_mask(batch, blocks))
        self.batch, self.blocks, self.size = batch, blocks, size
        self.logit_ABV = (hidden_QD @ weights.head_VD.T).view(anchors, size, -1)

    def of_each_block(self) -> list[list[tuple[int, int, torch.Tensor]]]:
        """For each block in use the guesses it is asked for: slot k, the place of the token to guess, log-probabilities [V]."""
        found = []
        for row, anchor in enumerate(self.blocks.anchor_A.tolist()):
            if self.blocks.used_A[row]:
                asked = [k for k in range(1, self.size) if self._is_asked(anchor, k)]
                found.append([(k, anchor + k, self.logit_ABV[row, k].log_softmax(0)) for k in asked])
        return found

    def _is_asked(self, anchor: int, k: int) -> bool:
        """Whether the tokens up to anchor + k belong to the anchor's turn: once one does not, neither does what follows."""
        places = range(anchor + 1, anchor + k + 1)
        batch = self.batch
        return all(
            place < batch.tokens and batch.document_T[place] == batch.document_T[anchor] and bool(batch.supervised_T[place])
            for place in places
        )

    def counts(self) -> dict[str, list[int]]:
        """By position: hits, guesses asked, blocks right so far, blocks right until just before."""
        counts = {name: [0] * (self.size - 1) for name in ("hit", "asked", "kept", "at_risk")}
        for block in self.of_each_block():
            all_right = True
            for k, place, log_q_V in block:
                right = bool(log_q_V.argmax() == self.batch.token_T[place])
                counts["asked"][k - 1] += 1
                counts["hit"][k - 1] += right
                counts["at_risk"][k - 1] += all_right
                all_right = all_right and right
                counts["kept"][k - 1] += all_right
        return counts


def cross_entropy(guesses: Guesses, gamma: float) -> tuple[torch.Tensor, float]:
    """The weighted sum and what it is divided by."""
    weighted, weight = torch.zeros(()), 0.0
    for block in guesses.of_each_block():
        for k, place, log_q_V in block:
            decay = math.exp(-(k - 1) / gamma)
            weighted = weighted - decay * log_q_V[guesses.batch.token_T[place]]
            weight += decay
    return weighted, weight


def dpace(guesses: Guesses, alpha: float) -> tuple[torch.Tensor, float]:
    """By the paper's words: how much of the expected kept length, sum_m prod_{i <= m} s_i, contains guess j's own s_j."""
    weighted, blocks = torch.zeros(()), 0
    for block in guesses.of_each_block():
        log_q = [log_q_V[guesses.batch.token_T[place]] for _, place, log_q_V in block]
        smooth = [(1 - alpha) * math.exp(one.item()) + alpha for one in log_q]
        for j in range(len(block)):
            held_by_j = sum(math.prod(smooth[: m + 1]) for m in range(j, len(block)))
            weighted = weighted - held_by_j * log_q[j]
        blocks += bool(block)
    return weighted, blocks


def distillation(guesses: Guesses, gamma: float, target_logit_TV: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Against the target's logits of the whole batch: the token at a place is what the target says one place before it."""
    weighted, weight = torch.zeros(()), 0.0
    for block in guesses.of_each_block():
        for k, place, log_q_V in block:
            decay = math.exp(-(k - 1) / gamma)
            weighted = weighted - decay * (target_logit_TV[place - 1].softmax(0) * log_q_V).sum()
            weight += decay
    return weighted, weight
