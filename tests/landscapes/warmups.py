"""What trials take to warm up: with their code in the compiler's cache, and without."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from advisor.recipe.settings import Settings
from advisor.records import Value
from landscapes.landscape import Run, compile_key

Name = TypeVar("Name", bound=Hashable)

# A compilation found in the cache, as a share of a cold one, where none was recorded. Unitless; an H200's host took 5 s
# instead of 23 s for a ResNet-50 (DESIGN, the trial process).
_CACHED_SHARE = 0.25
# A compiled trial's warm-up, and one that compiles nothing, in seconds, where none was recorded.
_COMPILE_S = 30.0
_PLAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Known:
    """All runs of one combination. ``code`` names its compiled code."""

    settings: Settings
    runs: tuple[Run, ...]
    code: Settings | None

    @property
    def measured(self) -> tuple[Run, ...]:
        """The runs that have timings."""
        return tuple(run for run in self.runs if run.result.measured)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Recorded warm-ups in seconds, by whether something was compiled anew."""

    cold: list[float]
    cached: list[float]

    @classmethod
    def of(cls, runs: Iterable[Run]) -> _Seen:
        cold, cached = list[float](), list[float]()
        for run in runs:
            (cold if run.cold else cached).append(run.result.warmup_s or 0.0)
        return cls(cold, cached)


class WarmUps:
    """Recorded warm-ups, by combination, by code, and by how code is compiled.

    ``cost`` says how long compiling settings takes relative to the usual, for ways of compiling that were not recorded.
    """

    def __init__(self, known: Mapping[Settings, Known], cost: Callable[[Settings], float]) -> None:
        self._cost = cost
        measured = [one for one in known.values() if one.measured]
        self._own = {one.settings: _Seen.of(one.measured) for one in measured}
        self._plain = _Seen.of(run for one in measured if one.code is None for run in one.measured)
        self._by_code = _grouped(measured, lambda code: code)
        self._by_way = _grouped(measured, _way)

    def of(self, settings: Settings) -> tuple[float, float]:
        """Seconds of warming up without and with the code in the cache; the same where nothing is compiled."""
        code, own = compile_key(settings), self._own.get(settings, _Seen([], []))
        if code is None:
            plain_s = median(own.cached or self._plain.cached or [_PLAIN_S])
            return plain_s, plain_s
        groups = [self._by_code.get(code), self._by_way.get(_way(code))]
        seen = [group for group in groups if group is not None]
        cold_s = _first_median([group.cold for group in seen], self._usual_cold_s * self._cost(code))
        cached_s = _first_median([own.cached, *(group.cached for group in seen)], _CACHED_SHARE * cold_s)
        return max(cold_s, cached_s), min(cold_s, cached_s)

    @property
    def _usual_cold_s(self) -> float:
        """The cold warm-up of code that is compiled in the usual way."""
        usual = [seen.cold for way, seen in self._by_way.items() if self._cost(Settings(dict(way))) == 1.0]
        return median([seconds for cold in usual for seconds in cold] or [_COMPILE_S])


def _grouped(measured: Iterable[Known], key: Callable[[Settings], Name]) -> dict[Name, _Seen]:
    """The warm-ups of compiled combinations, by a property of their code."""
    runs: dict[Name, list[Run]] = {}
    for one in measured:
        if one.code is not None:
            runs.setdefault(key(one.code), []).extend(one.measured)
    return {name: _Seen.of(group) for name, group in runs.items()}


def _way(code: Settings) -> frozenset[tuple[str, Value]]:
    """How code is compiled: what of the model, and in which mode."""
    return frozenset(item for item in code.items() if item[0].startswith("compile."))


def _first_median(groups: Iterable[list[float]], default: float) -> float:
    """The median of the first group that is not empty."""
    return next((median(group) for group in groups if group), default)
