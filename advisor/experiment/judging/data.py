"""Whether a trial saw the data that the baseline saw: the prints of their first batches, compared."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from advisor.records import BatchPrint, DataPrint, PartPrint, varying

# Relative difference of weighted sums that another type or device explains. Unitless; two round-offs of bfloat16.
_ROUNDING = 2.0**-7
_Batches = tuple[BatchPrint, ...]


@dataclass(frozen=True, slots=True)
class DataDifference:
    """A difference between a trial's batches and the baseline's, as a sentence. ``rounded``: only by rounding."""

    text: str
    rounded: bool = False


def compare_data(new: DataPrint | None, old: DataPrint | None) -> DataDifference | None:
    """The first difference that matters, or None. ``old`` is the baseline's: it says what varies by itself."""
    if new is None or old is None:
        return None
    kinds = (("first", new.probed, old.probed), ("loop's first", new.fed, old.fed))
    differences = [difference for kind in kinds if (difference := _first_difference(*kind, old)) is not None]
    return next((one for one in differences if not one.rounded), next(iter(differences), None))


def widened(own: DataPrint | None, others: Iterable[DataPrint | None]) -> DataPrint | None:
    """The baseline's print, in which parts that differ between runs of the baseline are marked as random."""
    if own is None:
        return None
    random, loose = list(own.random), list(own.loose)
    for other in others:
        if other is not None:
            for ones, another in ((own.probed, other.probed), (own.fed, other.fed)):
                contents, shapes = varying(ones, another)
                random += contents
                loose += shapes
    return replace(own, random=tuple(dict.fromkeys(random)), loose=tuple(dict.fromkeys(loose)))


def _first_difference(name: str, mine: _Batches, theirs: _Batches, own: DataPrint) -> DataDifference | None:
    """The first difference that matters between batches; ``own`` tells which of their parts vary by themselves."""
    rounded = None
    for turn, (new, old) in enumerate(zip(mine, theirs, strict=False)):
        for place in dict.fromkeys(part.place for batch in (old, new) for part in batch.parts):
            kind = _kind_of_difference(new, old, place, own)
            if kind == "rounded":
                rounded = rounded or DataDifference(f"the {name} batches differ by rounding ({place})", rounded=True)
            elif kind:
                other = f"the {name} batches are not the baseline's: {place} of batch {turn + 1} {kind}"
                return DataDifference(_of_order(mine, theirs, turn, own) or other)
    return rounded


def _kind_of_difference(new: BatchPrint, old: BatchPrint, place: str, own: DataPrint) -> str:
    """The difference between two batches at a place, as the end of a sentence; empty when none matters."""
    a, b = _part(new, place), _part(old, place)
    if any(place == free or place.startswith(f"{free}.") for free in own.loose) or "batch" in own.loose:
        return ""
    if a is None or b is None:
        return "is new" if b is None else "is missing"
    if a.shape != b.shape:
        return f"is {a.kind}{list(a.shape)} in place of {b.kind}{list(b.shape)}"
    if a.kind != b.kind:
        # Half precision, say: of what is random only this can be told.
        rounded = _close(a, b) or bool(place in own.random and a.sums and b.sums)
        return "rounded" if rounded else f"is a {a.kind} in place of a {b.kind}"
    if a.checksum == b.checksum or place in own.random:
        return ""
    return "rounded" if _close(a, b) else "has other contents"


def _close(a: PartPrint, b: PartPrint) -> bool:
    """Whether two parts hold floating-point numbers that differ by rounding at most."""
    pairs = zip(a.sums, b.sums, strict=False)
    return bool(a.sums and b.sums) and all(abs(x - y) <= _ROUNDING * abs(b.sums[0]) for x, y in pairs)


def _of_order(mine: _Batches, theirs: _Batches, turn: int, own: DataPrint) -> str:
    """A sentence about batches that repeat or come in another order; empty when neither is seen."""
    new, old = ([_fixed(batch, own) for batch in batches] for batches in (mine, theirs))
    if new[turn] and new[turn] in new[:turn] and len(set(old)) == len(old):
        return f"batch {turn + 1} repeats an earlier one: every worker yields all samples; shard by get_worker_info()"
    return "the batches come in another order" if new[turn] and new[turn] in old else ""


def _fixed(batch: BatchPrint, own: DataPrint) -> tuple[tuple[str, int], ...]:
    """The checksums of a batch's parts that are the same in every run."""
    free = {*own.random, *own.loose}
    return tuple((part.place, part.checksum) for part in batch.parts if part.checksum and part.place not in free)


def _part(batch: BatchPrint, place: str) -> PartPrint | None:
    return next((part for part in batch.parts if part.place == place), None)
