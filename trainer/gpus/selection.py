"""Which GPUs to sample, by the driver's index: those that the run uses, or else those in CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainer.gpus.device import UsedGpu, bare


def choose(used: Sequence[UsedGpu], setting: str | None, identities: Sequence[Sequence[str]]) -> list[int]:
    """Indices into `identities`, each of which lists all UUIDs of one GPU: its own and those of its MIG instances.

    The GPUs in use come first: of eight ranks on a machine, each reports its own. They are matched by UUID, since CUDA may count
    differently from the driver (fastest first, instead of in the order of the PCI bus). If none is known, the setting decides.
    """
    wanted = {bare(gpu.uuid) for gpu in used}
    known = [index for index, names in enumerate(identities) if wanted & {bare(name) for name in names}]
    return known or visible(setting, identities)


def choose_parts(used: Sequence[UsedGpu], setting: str | None, identities: Sequence[str]) -> list[int]:
    """The same for the MIG instances of one GPU. If none is known to be in use: the first in the setting, as CUDA does."""
    wanted = {bare(gpu.uuid) for gpu in used}
    known = [position for position, identity in enumerate(identities) if bare(identity) in wanted]
    words = [word.strip() for word in (setting or "").split(",")]
    named = [position for position, identity in enumerate(identities) if any(_is_named(word, identity) for word in words)]
    return known or (named or list(range(len(identities))))[:1]


def visible(setting: str | None, identities: Sequence[Sequence[str]]) -> list[int]:
    """The indices in CUDA_VISIBLE_DEVICES, given by number or by the beginning of a UUID; None means all.

    As in CUDA, the list ends at the first word that matches no device.
    """
    return list(range(len(identities))) if setting is None else list(dict.fromkeys(_found(setting, identities)))


def _found(setting: str, identities: Sequence[Sequence[str]]) -> Iterator[int]:
    for word in map(str.strip, setting.split(",")):
        named = (index for index, names in enumerate(identities) if any(_is_named(word, name) for name in names))
        matches = [int(word)] if word.isdecimal() and int(word) < len(identities) else list(named)
        if not matches:
            return
        yield matches[0]


def _is_named(word: str, identity: str) -> bool:
    """Whether a word of CUDA_VISIBLE_DEVICES stands for this GPU or MIG instance."""
    return word.startswith(("GPU-", "MIG-")) and identity.startswith(word)
