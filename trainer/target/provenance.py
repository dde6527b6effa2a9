"""Reads how data was made from its `provenance.json`, and finds where a run does not match it.

`same_target` decides whether two names mean the same model, for every warning about another target.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config import DatasetConfig
from trainer.data.conversations import DEMO
from trainer.target.load import HUB_ID, WEIGHTS, Target

NAME = "provenance.json"
HASHED_BYTES = 65_536
BUILT_IN = {"demo", "tiny"}  # always these targets, even where a folder has such a name


def read_provenance(data: str) -> dict[str, Any] | None:
    """What `prepare` wrote beside the conversations in `data` (a folder or `demo`); None where it is missing or unreadable."""
    folder = DEMO if data == "demo" else Path(data).expanduser()
    try:
        provenance = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return provenance if isinstance(provenance, dict) else None


def mismatches(
    provenance: Mapping[str, Any], *, target: Target, precision: str, template_args: Mapping[str, Any] | None = None
) -> list[str]:
    """A sentence for each way in which the data's answers are not what this target would say; what is not recorded is skipped.

    `precision` is a name such as `float32`; `template_args` are as in the config, or with their values parsed.
    """
    sentences = []
    if other := _other_target(provenance, target):
        sentences.append(f"{other}: the drafter would learn to guess what another model says")
    before = provenance.get("precision")
    if isinstance(before, str) and before != precision:
        sentences.append(
            f"the data's answers were made in {before}, but the target runs in {precision}: the texts diverge after some tokens, "
            "and the drafter learns to guess the wrong one"
        )
    then, now = _values(provenance.get("template_args")), _values(template_args)
    if differing := sorted(name for name in {*then, *now} if _as_json(then, name) != _as_json(now, name)):
        both = ", ".join(f"{name} {_as_json(then, name)} then and {_as_json(now, name)} now" for name in differing)
        sentences.append(
            f"the data's answers were made with other template arguments ({both}): the target would say something else"
        )
    return sentences


def weights_fingerprint(target: str) -> str | None:
    """A hash over parts of the weights in a target's folder, the same for every copy; None for targets that are no folder.

    Reads 64 KiB from the middle and the end of each file: two trainings of a model differ everywhere in them.
    """
    folder = Path(target).expanduser()
    is_folder = target not in BUILT_IN and folder.is_dir()
    files = sorted({path for pattern in WEIGHTS for path in folder.glob(pattern)}) if is_folder else []
    digest = hashlib.blake2b(digest_size=16)
    try:
        for path in files:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                for offset in (size // 2, max(0, size - HASHED_BYTES)):
                    file.seek(offset)
                    digest.update(file.read(HASHED_BYTES))
    except OSError:
        return None
    return digest.hexdigest() if files else None


def same_target(recorded: str, name: str, weights: str | None = None) -> bool:
    """Whether the name recorded when something was made and `name`, given now, mean the same model.

    `weights` is the fingerprint recorded beside the first, if any: where both have one, they decide. Otherwise equal
    names mean the same model; a hub id and a folder do if their last parts agree, as after a download; two folders do if they are
    one folder or hold the same weights.
    """
    own = weights_fingerprint(name)
    if weights and own:
        return weights == own
    if recorded == name:
        return True
    if {recorded, name} & BUILT_IN:
        return False
    on_hub = [_is_hub_id(one) for one in (recorded, name)]
    if all(on_hub):
        return recorded.lower() == name.lower()
    before, now = Path(recorded).expanduser(), Path(name).expanduser()
    if any(on_hub):
        return before.name.lower() == now.name.lower()
    return before.resolve() == now.resolve() or (own is not None and own == weights_fingerprint(recorded))


def _is_hub_id(name: str) -> bool:
    return HUB_ID.fullmatch(name) is not None and not Path(name).is_dir()


def _other_target(provenance: Mapping[str, Any], target: Target) -> str | None:
    before = provenance.get("target")
    if not isinstance(before, str):
        return None
    if provenance.get("target_stand_in"):
        before = "tiny"
    now = "tiny" if target.note else target.name
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


def _as_json(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name], default=str) if name in values else "not given"
