"""How data was made: a folder of conversations in, what its `provenance.json` says out, and where a run would not fit it.

Whether two names are one target is told here too, by `same_target`, for everybody who warns of another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config import DatasetConfig
from trainer.data.conversations import DEMO
from trainer.target.load import HUB_ID, WEIGHTS, describe

NAME = "provenance.json"
SAMPLE_BYTES = 65_536
BUILT_IN = {"demo", "tiny"}  # names of targets, whatever folders are called


def read_provenance(data: str) -> dict[str, Any] | None:
    """What `prepare` wrote beside its conversations; None where there is no such file or it cannot be read. `demo` is known."""
    folder = DEMO if data == "demo" else Path(data).expanduser()
    try:
        told = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def mismatches(
    provenance: Mapping[str, Any], *, target: str, precision: str, template_args: Mapping[str, Any] | None = None
) -> list[str]:
    """A sentence for each way in which the answers are not what this target would say; unknown facts are passed over.

    `precision` is a name such as `float32`; `template_args` as in the config, or with their values read.
    """
    sentences = []
    if other := _other_target(provenance, target):
        sentences.append(f"{other}: the drafter would learn to guess what another model says")
    before = provenance.get("precision")
    if isinstance(before, str) and before != precision:
        sentences.append(
            f"the data's answers were made in {before}, but the target runs in {precision}: their texts part after some tokens, "
            "and the drafter guesses the wrong one"
        )
    said, now = _values(provenance.get("template_args")), _values(template_args)
    if differing := sorted(name for name in {*said, *now} if _word(said, name) != _word(now, name)):
        told = ", ".join(f"{name} {_word(said, name)} then and {_word(now, name)} now" for name in differing)
        sentences.append(
            f"the data's answers were made with other template arguments ({told}): the target would say something else"
        )
    return sentences


def weights_fingerprint(target: str) -> str | None:
    """A hash of samples of the weights in a target's folder, the same wherever it lies; None for targets that are no folder.

    Reads 64 KiB from the middle and the end of each file: what tells one training of a model from the next is all over them.
    """
    folder = Path(target).expanduser()
    files = sorted({path for pattern in WEIGHTS for path in folder.glob(pattern)}) if folder.is_dir() else []
    digest = hashlib.blake2b(digest_size=16)
    try:
        for path in files:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                for place in (size // 2, max(0, size - SAMPLE_BYTES)):
                    file.seek(place)
                    digest.update(file.read(SAMPLE_BYTES))
    except OSError:
        return None
    return digest.hexdigest() if files else None


def same_target(recorded: str, asked: str, weights: str | None = None) -> bool:
    """Whether two names, one written down when something was made and one given now, mean the same model.

    `weights` is the fingerprint that was written down beside the first, if one was; if both have one, it decides. Else the same
    name is the same model; a hub id and a folder are if their last parts agree, as a download has them; two folders are if they
    are one, or hold the same weights.
    """
    own = weights_fingerprint(asked)
    if weights and own:
        return weights == own
    if recorded == asked:
        return True
    if {recorded, asked} & BUILT_IN:
        return False
    on_hub = [_is_hub_id(name) for name in (recorded, asked)]
    if all(on_hub):
        return recorded.lower() == asked.lower()
    before, now = Path(recorded).expanduser(), Path(asked).expanduser()
    if any(on_hub):
        return before.name.lower() == now.name.lower()
    return before.resolve() == now.resolve() or (own is not None and own == weights_fingerprint(recorded))


def _is_hub_id(name: str) -> bool:
    return HUB_ID.fullmatch(name) is not None and not Path(name).is_dir()


def _other_target(provenance: Mapping[str, Any], target: str) -> str | None:
    before = provenance.get("target")
    if not isinstance(before, str):
        return None
    if provenance.get("target_stand_in"):
        before = "tiny"
    now = "tiny" if target == "demo" and describe(target).note else target
    weights = provenance.get("target_weights")
    if same_target(before, now, weights if isinstance(weights, str) else None):
        return None
    if before == now:
        return f"the weights of target {now!r} are not those that made the data's answers"
    return f"the data's answers are by target {before!r}, but the target is {now!r}"


def _values(template_args: Any) -> dict[str, Any]:
    if not isinstance(template_args, Mapping):
        return {}
    words = {name: value for name, value in template_args.items() if isinstance(value, str)}
    return {**template_args, **DatasetConfig(template_args=words).template_values()}


def _word(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name], default=str) if name in values else "not given"
