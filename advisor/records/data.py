"""The prints of a trial's batches: enough to tell whether two trials saw the same data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartPrint:
    """One part of a batch. ``place`` leads to it (``1``, ``labels``, ``x.mask``); ``kind`` is its type.

    ``checksum`` is of a fixed sample of its bytes. ``sums`` are two sums of that sample, which rounding changes little
    and another order of samples a lot; empty for what is not a finite floating-point tensor.
    """

    place: str
    kind: str
    shape: tuple[int, ...] = ()
    checksum: int = 0
    sums: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchPrint:
    """The parts of one batch, in their order."""

    parts: tuple[PartPrint, ...]


@dataclass(frozen=True, slots=True)
class DataPrint:
    """The first batches of a trial's loader under the trial's seed.

    ``probed`` were drawn in the trial's own process, ``fed`` are those that the loop got, from workers where there are
    some. ``random`` names the places whose contents differ when only the random numbers of the dataset do, ``loose``
    those whose shapes or types differ too; only the baseline, whose data is looked at twice, has them.
    """

    probed: tuple[BatchPrint, ...] = ()
    fed: tuple[BatchPrint, ...] = ()
    random: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()


def varying(ones: tuple[BatchPrint, ...], others: tuple[BatchPrint, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The places whose contents differ between two draws of the same batches, and those whose shapes or types do."""
    contents: dict[str, None] = {}
    loose: dict[str, None] = {}
    for one, other in zip(ones, others, strict=False):
        mine, theirs = ({part.place: part for part in batch.parts} for batch in (one, other))
        for place in mine | theirs:
            a, b = mine.get(place), theirs.get(place)
            if a is None or b is None or (a.kind, a.shape) != (b.kind, b.shape):
                loose[place] = None
            elif a.checksum != b.checksum:
                contents[place] = None
    return tuple(place for place in contents if place not in loose), tuple(loose)
