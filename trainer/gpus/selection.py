"""Which GPUs are looked at: indices as the driver counts, of those that the run uses, or else by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainer.gpus.device import UsedGpu, bare


def choose(used: Sequence[UsedGpu], setting: str | None, identities: Sequence[Sequence[str]]) -> list[int]:
    """Indices into `identities`, each of which lists all names of one GPU: its own and those of its MIG instances.

    What the run uses decides: of eight ranks on a machine each tells of its own GPUs. It is matched by identity, since CUDA need
    not count as the driver does (fastest first against the order of the PCI bus). Where nothing is known of it, the setting does.
    """
    wanted = {bare(gpu.uuid) for gpu in used}
    known = [index for index, names in enumerate(identities) if wanted & {bare(name) for name in names}]
    return known or visible(setting, identities)


def choose_parts(used: Sequence[UsedGpu], setting: str | None, identities: Sequence[str]) -> list[int]:
    """The same for the MIG instances of one GPU. Where torch names none: the first that the setting leaves, which CUDA takes."""
    wanted = {bare(gpu.uuid) for gpu in used}
    known = [place for place, identity in enumerate(identities) if bare(identity) in wanted]
    words = [word.strip() for word in (setting or "").split(",")]
    named = [place for place, identity in enumerate(identities) if any(_is_named(word, identity) for word in words)]
    return known or (named or list(range(len(identities))))[:1]


def visible(setting: str | None, identities: Sequence[Sequence[str]]) -> list[int]:
    """The indices that CUDA_VISIBLE_DEVICES names, by number or by the beginning of an identity; None names all.

    As in CUDA, the list ends at the first word that fits no device.
    """
    return list(range(len(identities))) if setting is None else list(dict.fromkeys(_found(setting, identities)))


def _found(setting: str, identities: Sequence[Sequence[str]]) -> Iterator[int]:
    for word in map(str.strip, setting.split(",")):
        named = (index for index, names in enumerate(identities) if any(_is_named(word, name) for name in names))
        fits = [int(word)] if word.isdecimal() and int(word) < len(identities) else list(named)
        if not fits:
            return
        yield fits[0]


def _is_named(word: str, identity: str) -> bool:
    """Whether a word of CUDA_VISIBLE_DEVICES means this GPU or MIG instance."""
    return word.startswith(("GPU-", "MIG-")) and identity.startswith(word)
