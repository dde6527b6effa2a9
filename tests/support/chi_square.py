"""Counts against exact probabilities: how likely is it that chance alone moved them so far apart?"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

Text = tuple[int, ...]

# Cells that expect fewer are put together: only for larger ones is the statistic near its law.
_LEAST_EXPECTED = 5.0


def chance_of(counts: Counter[Text], exact: Mapping[Text, float]) -> float:
    """Pearson's test: the probability of a statistic as large as this one, or 0.0 if something impossible was counted."""
    total = counts.total()
    if any(exact.get(text, 0.0) == 0.0 for text in counts):
        return 0.0
    assert abs(sum(exact.values()) - 1) < 1e-5, "they are the probabilities of everything that can happen"
    cells: list[tuple[float, float]] = []
    rest = (0.0, 0.0)
    for text, probability in exact.items():
        cell = (float(counts[text]), total * probability)
        if cell[1] >= _LEAST_EXPECTED:
            cells.append(cell)
        else:
            rest = (rest[0] + cell[0], rest[1] + cell[1])
    if rest[1] >= _LEAST_EXPECTED:
        cells.append(rest)
    assert len(cells) > 2, "too few texts were drawn to tell anything"
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    freedom = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


def even(texts: Sequence[Text]) -> dict[Text, float]:
    return {text: 1 / len(texts) for text in texts}
