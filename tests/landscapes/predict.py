"""What a combination of settings takes: as recorded, or predicted from those that were."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from advisor.judging.runs import is_captured
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import Outcome, TrialResult, Value
from landscapes.landscape import Landscape, Run, canonical, compile_key, is_compiled, sample_seconds

# The spread of processes of the same program where too few were repeated. Log units; graphs replay alike, host-bound
# loops do not (CONTRIBUTING, Measurement).
_USUAL_SPREAD = {True: 0.004, False: 0.012}
_SMALLEST_SPREAD = 0.002
_FEWEST_REPEATS = 3
# What settings weigh when the numerics of the recorded combination that is most alike are taken. Unitless.
_ARITHMETIC = (("precision.", 8.0), ("data.batch_size", 8.0), ("compile.", 3.0), ("model.", 2.0))
# A compilation found in the cache, as a share of a cold one, where none was recorded. Unitless; an H200's host took 5 s
# instead of 23 s for a ResNet-50 (DESIGN, the trial process).
_CACHED_SHARE = 0.25
_COMPILE_S = 30.0  # a compiled trial's warm-up, and one that compiles nothing, in seconds, where none was recorded
_PLAIN_S = 1.0
# What a setting does, typically, in log units; the variance that no logarithm is below; and how much effects of pairs
# are believed beside single effects. By how well other synthetic combinations are predicted (test_landscapes.py).
_EFFECT = 0.15
_SMALLEST_VARIANCE = 1e-5
_PAIR_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class Known:
    """All runs of one combination, and those that have timings. ``code`` names its compiled code."""

    runs: tuple[Run, ...]
    measured: tuple[Run, ...]
    code: Settings | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a combination takes, without noise.

    ``result`` holds what does not vary: numerics, peaks, notes, or how the trial fails; then ``sample_s`` is infinite.
    ``cold_s`` and ``cached_s`` are its warm-up without and with its code in the cache, seconds.
    """

    settings: Settings
    result: TrialResult
    sample_s: float
    process_spread: float
    block_spread: float
    cold_s: float
    cached_s: float
    predicted: bool
    fails_after_s: float = math.inf

    @property
    def fails(self) -> bool:
        """Whether the trial ends without timings."""
        return self.result.outcome is not Outcome.MEASURED


@dataclass
class Predictor:
    """Answers for any settings. What was asked once is kept."""

    landscape: Landscape
    catalog: Catalog
    _answers: dict[Settings, Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_settings: dict[Settings, list[Run]] = {}
        for run in self.landscape.runs:
            by_settings.setdefault(self.canonical(run.settings), []).append(run)
        self.known = {
            settings: Known(tuple(runs), tuple(run for run in runs if run.result.measured), compile_key(settings))
            for settings, runs in by_settings.items()
        }
        self.measured = {settings: known for settings, known in self.known.items() if known.measured}
        self._failing = {s: _blamed(s, self.measured) for s in self.known if s not in self.measured}
        self._spreads = {graphed: self._pooled_spread(graphed) for graphed in (True, False)}
        variance = {s: self._spreads[is_captured(s)] ** 2 / len(k.measured) for s, k in self.measured.items()}
        self._speed = Regression.of({s: math.log(_center(k)) for s, k in self.measured.items()}, variance)

    def canonical(self, settings: Mapping[str, Value]) -> Settings:
        """The settings in the form in which combinations are compared."""
        return canonical(self.catalog, self.landscape.workload, settings)

    def answer(self, settings: Mapping[str, Value]) -> Answer:
        """What these settings take."""
        wanted = self.canonical(settings)
        if wanted not in self._answers:
            self._answers[wanted] = self._find(wanted)
        return self._answers[wanted]

    def smoothed_s(self, settings: Mapping[str, Value]) -> float:
        """Seconds per sample by all that is recorded: what a combination takes without the luck of its few processes.

        Infinite for one that fails.
        """
        answer = self.answer(settings)
        return math.inf if answer.fails else math.exp(self._speed.at(self._familiar(answer.settings)))

    def _find(self, wanted: Settings) -> Answer:
        known = self.measured.get(wanted)
        if known is not None:
            return self._of(wanted, replace(known.measured[0].result, blocks=()), _center(known), predicted=False)
        if wanted in self.known:
            return self._failure(wanted, self.known[wanted], predicted=False)
        reason = self.catalog.conflict(wanted)
        if reason:
            failed = TrialResult(Outcome.FAILED, reason)
            return replace(self._of(wanted, failed, math.inf, predicted=True), fails_after_s=1.0)
        for settings, parts in self._failing.items():
            if any(part <= set(wanted.items()) for part in parts):
                return self._failure(wanted, self.known[settings], predicted=True)
        return self._predicted(wanted)

    def _failure(self, wanted: Settings, known: Known, *, predicted: bool) -> Answer:
        result = replace(known.runs[0].result, blocks=())
        after = math.inf if result.outcome is Outcome.TIMED_OUT else _after_preparing(result)
        return replace(self._of(wanted, result, math.inf, predicted=predicted), fails_after_s=after)

    def _predicted(self, wanted: Settings) -> Answer:
        """The regression's answer, with numerics and memory of the recorded combination that is most alike."""
        familiar = self._familiar(wanted)
        nearest = min(self.measured, key=lambda other: (_unlikeness(familiar, other), len(other)))
        batch_size = int(wanted.get("data.batch_size", 0)) or self.landscape.baseline.batch_size
        result = replace(self.measured[nearest].measured[0].result, blocks=(), batch_size=batch_size)
        return self._of(wanted, result, math.exp(self._speed.at(familiar)), predicted=True)

    def _of(self, settings: Settings, result: TrialResult, sample_s: float, *, predicted: bool) -> Answer:
        cold_s, cached_s = self._warm_ups(settings)
        return Answer(
            settings,
            result,
            sample_s,
            self._spreads[is_captured(settings)],
            self._block_spread(settings),
            cold_s,
            cached_s,
            predicted,
        )

    def _familiar(self, wanted: Settings) -> Settings:
        """The settings with numbers that were never recorded replaced by the nearest that were."""
        found = {}
        for key, value in wanted.items():
            known = [other[key] for other in self.measured if _is_number(other.get(key))]
            if _is_number(value) and known and value not in known:
                found[key] = min(known, key=lambda v, value=value: abs(math.log((v + 1) / (value + 1))))
            else:
                found[key] = value
        return Settings(found)

    def _warm_ups(self, settings: Settings) -> tuple[float, float]:
        """Seconds of warming up without and with the code in the cache; the same where nothing is compiled."""
        everything = self.measured.values()
        code = compile_key(settings)
        of_code = [run for known in everything if known.code == code for run in known.measured]
        own = self.measured[settings].measured if settings in self.measured else of_code
        if code is None:
            plain_s = _warm_up(own, of_code, cold=False) or _PLAIN_S
            return plain_s, plain_s
        # Of code that was not recorded, the warm-up of the usual way of compiling says how long it takes.
        of_usual = [known for known in everything if known.code and self.catalog.cost(known.code) == 1.0]
        usual_s = _warm_up([run for known in of_usual for run in known.measured], cold=True) or _COMPILE_S
        cold_s = _warm_up(of_code, cold=True) or usual_s * self.catalog.cost(code)
        cached_s = _warm_up(own, of_code, cold=False) or _CACHED_SHARE * cold_s
        return max(cold_s, cached_s), min(cold_s, cached_s)

    # --- noise --------------------------------------------------------------------------------------------------

    def _pooled_spread(self, graphed: bool) -> float:
        """The standard deviation of processes of the same combination, log units, from what was repeated."""
        squares, freedom = 0.0, 0
        for settings, known in self.measured.items():
            if is_captured(settings) == graphed and len(known.measured) > 1:
                logs = [math.log(sample_seconds(run.result)) for run in known.measured]
                squares += sum((value - sum(logs) / len(logs)) ** 2 for value in logs)
                freedom += len(logs) - 1
        if freedom < _FEWEST_REPEATS:
            return _USUAL_SPREAD[graphed]
        return max(_SMALLEST_SPREAD, math.sqrt(squares / freedom))

    def _block_spread(self, settings: Settings) -> float:
        """The spread of a process's blocks, relative; that of the baseline where there were too few."""
        known = self.measured.get(settings) or self.measured.get(Settings({}))
        spreads = [_relative_spread(run) for run in known.measured] if known else []
        return median([spread for spread in spreads if spread is not None] or [0.01])


def _unlikeness(one: Settings, other: Settings) -> float:
    """How far the arithmetic of two combinations is apart: precision counts most, then compiled code and the model."""
    keys = (key for key, _ in {*one.items()} ^ {*other.items()})
    return sum(next((weight for prefix, weight in _ARITHMETIC if key.startswith(prefix)), 0.1) for key in keys)


def _blamed(failed: Settings, measured: Iterable[Settings]) -> list[frozenset[tuple[str, Value]]]:
    """What of a failing combination is to blame: a setting that never ran, else pairs that never ran together."""
    seen = [set(settings.items()) for settings in measured]
    items = list(failed.items())
    single = [frozenset([item]) for item in items if not any(item in ran for ran in seen)]
    if single:
        return single
    pairs = [frozenset(pair) for pair in itertools.combinations(items, 2)]
    return [pair for pair in pairs if not any(pair <= ran for ran in seen)] or [frozenset(items)]


def _warm_up(*groups: Iterable[Run], cold: bool) -> float | None:
    """The median warm-up in seconds of the first group that has one which compiled anew, or did not."""
    seconds = ([run.result.warmup_s or 0.0 for run in group if run.cold is cold] for group in groups)
    return next((median(found) for found in seconds if found), None)


def _center(known: Known) -> float:
    return median(sample_seconds(run.result) for run in known.measured)


def _relative_spread(run: Run) -> float | None:
    """The standard deviation of a run's blocks by their median absolute deviation, relative to the median."""
    seconds = [block.seconds / block.samples for block in run.result.blocks]
    if len(seconds) < 4:
        return None
    center = median(seconds)
    return 1.4826 * median(abs(value - center) for value in seconds) / center


def _after_preparing(result: TrialResult) -> float:
    """Seconds from a failing trial's first step to its end."""
    before = (result.startup_s or 0.0) + (result.build_s or 0.0) + (result.prepare_s or 0.0)
    return max(0.1, (result.wall_s or 1.0) - before)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Regression:
    """A regression on recorded logarithms: what was not recorded is a sum of effects of what was.

    The logarithm is a sum of what each setting does and of what each pair of settings does beside that, compiled,
    captured, fed by workers and in half precision among them: a ridge regression in its kernel form (Bishop, Pattern
    Recognition and Machine Learning, section 6.1).
    """

    parts: tuple[frozenset[str], ...]
    weights: np.ndarray
    mean: float

    @classmethod
    def of(cls, observed: Mapping[Settings, float], variance: Mapping[Settings, float]) -> "Regression":
        """Fit; ``variance`` is that of each recorded logarithm."""
        parts, logarithms = tuple(_parts(settings) for settings in observed), np.array(list(observed.values()))
        noise = [_SMALLEST_VARIANCE + variance[settings] for settings in observed]
        kernel = np.array([_kernel(parts, row) for row in parts]) + np.diag(noise) / _EFFECT**2
        mean = float(logarithms.mean())
        return cls(parts, np.linalg.solve(kernel, logarithms - mean), mean)

    def at(self, settings: Settings) -> float:
        """The logarithm by all that is recorded: of a recorded combination, less of its noise."""
        return self.mean + float(np.dot(_kernel(self.parts, _parts(settings)), self.weights))


def _kernel(recorded: tuple[frozenset[str], ...], parts: frozenset[str]) -> list[float]:
    """The kernel of a regression on single parts and on pairs of them: by how many each recorded combination shares."""
    shared = [len(parts & other) for other in recorded]
    return [1.0 + count + _PAIR_WEIGHT * count * (count - 1) / 2 for count in shared]


def _parts(settings: Settings) -> frozenset[str]:
    """The settings, and what several of them mean alike: compiled, captured, half precision, workers."""
    alike = {
        "compiled": is_compiled(settings),
        "captured": is_captured(settings),
        "half": "precision.autocast" in settings or "precision.weights" in settings,
        "workers": bool(settings.get("data.num_workers")),
    }
    return frozenset({f"{key}={value}" for key, value in settings.items()} | {name for name in alike if alike[name]})
