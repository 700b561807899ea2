"""The budget: wall seconds of a session, the limit of each trial, and the durations of trials and compilations."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from advisor.recipe.catalog import Catalog, load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Facts, Mode

_SHORTEST_MEASURE_S = 0.5
_LONGEST_MEASURE_S = 3.0
_MEASURE_SHARE = 0.015
_COMPILE_S = 25.0  # expected duration of a first compilation before the workload is known; seconds
# A trial that finds its kernels in the compiler's cache takes this share of one that compiles: 0.19 to 0.35 on H200s.
_CACHED_SHARE = 0.3
# Importing torch, building a large model and its first steps can take this long. Seconds.
_FIRST_TRIAL_S = 120.0
# The first baseline gets at least this long from the session's start, even beyond a short budget: without it there is
# no result. If importing torch took most of that time, the baseline still gets the second figure. Seconds.
_FIRST_GRACE_S = 20.0
_FIRST_AT_LEAST_S = 8.0
# An ordinary trial (it compiles nothing) hangs after this multiple of the usual time and, in addition, this share of
# the budget, of which at most this many seconds count.
_HANGS_AFTER = 10.0
_HANGS_AFTER_SHARE, _HANGS_AFTER_S = 0.1, 30.0
_LAST_S = 0.5  # time to end the process of a trial that is given up; seconds
_LATEST = 5  # number of latest trials that predict the duration of the next; a count


class Budget:
    """Keeps the time of a session. ``clock`` is injectable for tests and replays.

    ``extended_s`` is what was added to ``total_s``; it is negative while time is reserved for several GPUs.
    ``baseline_s`` is the duration of a trial like the baseline without inspecting; None before it is measured.
    ``interpreter_s`` is the extra time of a trial in a fresh interpreter: it imports torch and builds the target again,
    in ``build_s``. ``guessed_compile_s`` estimates the extra time of a first compilation before one was timed.
    """

    def __init__(
        self, total_s: float, clock: Callable[[], float] = time.monotonic, catalog: Catalog | None = None
    ) -> None:
        self.total_s = total_s
        self.catalog = catalog or load_catalog()
        self._clock = clock
        self._started = clock()
        self._walls: list[tuple[Settings, float]] = []
        self._compiled: dict[Settings, list[float]] = {}
        self.extended_s = 0.0
        self.baseline_s: float | None = None
        self.interpreter_s = 0.0
        self.build_s = 0.0
        self.guessed_compile_s = _COMPILE_S

    def restart(self, total_s: float | None = None) -> None:
        """Start the budget again, for this long or as long as before. The known durations of trials stay."""
        self._started, self.extended_s = self._clock(), 0.0
        self.total_s = self.total_s if total_s is None else total_s

    # --- time -----------------------------------------------------------------------------------------------------

    @property
    def spent_s(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._started

    @property
    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.total_s + self.extended_s - self.spent_s)

    def allows(self, expected_s: float, *, reserve_s: float = 0.0) -> bool:
        """Whether a trial of this length fits into the time left, with the reserve after it."""
        return expected_s + reserve_s <= self.left_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the budget's clock inside this context."""
        began = self._clock()
        try:
            yield
        finally:
            self._started += self._clock() - began

    @property
    def measure_s(self) -> float:
        """The measuring time of one trial."""
        return min(_LONGEST_MEASURE_S, max(_SHORTEST_MEASURE_S, _MEASURE_SHARE * self.total_s))

    @property
    def first_timeout_s(self) -> float:
        """Seconds after which the first trial counts as hanging. May exceed the budget, since nothing is known yet."""
        within_s = max(self.left_s + _LAST_S, _FIRST_GRACE_S - self.spent_s, _FIRST_AT_LEAST_S)
        return min(_FIRST_TRIAL_S, within_s)

    @property
    def timeout_s(self) -> float:
        """Seconds after which a trial that compiles is given up, so that its process ends before the budget does."""
        return max(_LAST_S, self.left_s - _LAST_S)

    @property
    def hangs_after_s(self) -> float:
        """Seconds after which an ordinary trial counts as hanging, even with budget left: the other trials need it."""
        known = bool(self._walls) or self.baseline_s is not None
        longer_s = min(_HANGS_AFTER_S, _HANGS_AFTER_SHARE * self.total_s)
        return _HANGS_AFTER * self.expected_s(Settings()) + longer_s if known else math.inf

    # --- what trials take -----------------------------------------------------------------------------------------

    def learn(self, settings: Settings, wall_s: float) -> None:
        """Learn from the duration of a trial of these settings."""
        if cost := self.catalog.cost(settings):
            self._compiled.setdefault(self.catalog.compiled_code(settings), []).append(wall_s / cost)
        else:
            self._walls.append((settings, wall_s))

    def has_to_compile(self, settings: Settings) -> bool:
        """Whether settings compile code that no trial has compiled yet, so that the compiler's cache lacks it."""
        code = self.catalog.compiled_code(settings)
        return bool(code) and code not in self._compiled

    @property
    def compile_s(self) -> float | None:
        """Longest first compilation so far, scaled to settings of usual cost. Seconds; None before the first."""
        return max((walls[0] for walls in self._compiled.values()), default=None)

    def expected_s(self, settings: Settings) -> float:
        """The expected duration of the next trial, in seconds."""
        guess_s = 2 * self.measure_s + 1 if self.baseline_s is None else self.baseline_s
        # The distance is the number of settings whose values differ.
        near = [(len({key for key, _ in one.items() ^ settings.items()}), seconds) for one, seconds in self._walls]
        if all(one for one, _ in self._walls):
            near.append((len(settings), guess_s))
        # The first trial with new kernels may take seconds to load them, so the next nearest trials count as well.
        nearest = min(distance for distance, _ in near) + 1
        expected_s = median([seconds for distance, seconds in near if distance <= nearest][-_LATEST:])
        if not (cost := self.catalog.cost(settings)):
            return expected_s
        ordinary_s = median([seconds for _, seconds in self._walls[-_LATEST:]] or [guess_s])
        cold_s = cost * (self.guessed_compile_s + ordinary_s if self.compile_s is None else self.compile_s)
        if self.has_to_compile(settings):
            return max(expected_s, cold_s)
        _, *again = self._compiled[self.catalog.compiled_code(settings)]
        return max(expected_s, cost * min(again) if again else max(ordinary_s, _CACHED_SHARE * cold_s))


# Least-squares fit over eleven models in training on an H200's host (16 cores of a Xeon), torch 2.11, compiled together
# with the loss; the data are in tests/experiment/test_budget.py. Seconds.
_AT_LEAST_S = 5.0
_PER_OPERATION_S = 0.028
_PER_SHAPE_S = 0.88
# A C++ compiler makes the kernels of a CPU and takes this many times as long: three models took 49 to 57 s on two cores
# of an AMD EPYC, torch 2.14 (tests/gpu/RESULTS.md, "Compiling on a CPU"). Unitless.
_ON_CPU = 2.8
_FORWARD_SHARE = 0.3  # without a backward pass: 14 s for a ResNet-50, 13 s for a ViT-S
# If operations and shapes are not known: the usual number of operations for each parameter tensor.
_OPERATIONS_PER_TENSOR = 2
_SHAPES_PER_TENSOR = 1 / 6


def expected_compile_s(facts: Facts) -> float:
    """The seconds that compiling the model and its loss usually takes here, without the other parts of the trial.

    Tracing takes time for each operation. Generating code takes time for each different operation; the number of
    different parameter shapes approximates those. A transformer has few, a convolutional network many.
    """
    tensors = facts.workload.parameter_tensors
    operations = facts.operations or _OPERATIONS_PER_TENSOR * tensors
    shapes = facts.workload.parameter_shapes or _SHAPES_PER_TENSOR * tensors
    share = 1.0 if facts.workload.mode is Mode.TRAIN else _FORWARD_SHARE
    slower = facts.hardware.host.crowding * (1.0 if facts.on_cuda else _ON_CPU)
    return slower * (_AT_LEAST_S + share * (_PER_OPERATION_S * operations + _PER_SHAPE_S * shapes))
