"""Trials on the machine's other GPUs while one runs on the session's own.

Only single trials go there, whose outcome does not depend on what is measured meanwhile: a candidate alone, a setting
left out, another run of the same settings. The instruments and the turns with the baseline run while nothing else does.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial

from advisor.experiment.events import Said
from advisor.experiment.judging.judge import BASELINE
from advisor.experiment.judging.runs import speed
from advisor.experiment.known import Evidence, Kind, Known, Move
from advisor.experiment.measuring.bench import Bench
from advisor.experiment.moves import moves
from advisor.experiment.policy import POLICY
from advisor.experiment.search import Trials, rank
from advisor.figures.formatting import format_percent
from advisor.machine.hardware import visible_gpus
from advisor.recipe.catalog import Catalog
from advisor.records import Facts, TargetSpec, TrialSpec, Value

# The moves that may be measured on another GPU, by the move that is measured meanwhile. Beside one that may change the
# stack nothing is left out of it: that result would be about the stack as it was.
_KINDS_BESIDE = {
    **dict.fromkeys((Kind.STACK, Kind.ADD, Kind.SWAP, Kind.AGAIN), (Kind.ALONE, Kind.AGAIN)),
    **dict.fromkeys((Kind.ALONE, Kind.DROP), (Kind.ALONE, Kind.AGAIN, Kind.DROP)),
}
# The cores of a trial beside its loader's workers: one launches kernels, one runs the backward pass. A count.
_CORES_OF_A_TRIAL = 2
# Those of one that compiles: half the processes that PyTorch's compiler starts at most. A count.
_CORES_TO_COMPILE = 16
# A GPU on which the step differs more is not used. Unitless.
_LARGEST_DIFFERENCE = 0.03
# Trials on other GPUs may end this many times as late as the one beside which they run is expected to. Unitless.
_LATEST_END = 1.2


class UnusableError(Exception):
    """Trials run on the session's own GPU only, for this reason."""


def other_gpus(facts: Facts, target: TargetSpec, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The GPUs beside the session's own: of the same model, used by nobody, with cores for a trial on each.

    None where there is one GPU. Raises UnusableError.
    """
    visible = visible_gpus(facts.hardware, environment)
    if not facts.on_cuda or len(visible) < 2:
        return ()
    own = int(target.device.partition(":")[2] or 0)
    others = [(place, gpu) for place, gpu in enumerate(visible) if place != own]
    free = [place for place, gpu in others if gpu.name == visible[own].name and not (gpu.processes or gpu.mig_enabled)]
    each, usable = cores_of_a_trial(facts, {}), facts.hardware.host.usable_cores
    if not free:
        raise UnusableError("no other GPU is of the same model, whole and unused")
    if usable < 2 * each:
        raise UnusableError(f"two trials at a time need {2 * each} cores, and {usable} are usable")
    return tuple(f"cuda:{place}" for place in free[: usable // each - 1])


def cores_of_a_trial(facts: Facts, settings: Mapping[str, Value], catalog: Catalog | None = None) -> int:
    """The cores that a trial of these settings keeps busy."""
    loader = facts.workload.loader
    workers = settings.get("data.num_workers", loader.num_workers if loader else 0)
    compiles = catalog is not None and catalog.compiles(settings)
    return _CORES_OF_A_TRIAL + (workers if isinstance(workers, int) else 0) + (_CORES_TO_COMPILE if compiles else 0)


class OtherGpuTrials:
    """Chooses and runs the trials on other GPUs, none until ``find`` has found some.

    ``trials`` knows what moves cost; ``spec_of`` gives the trial of a move.
    """

    def __init__(self, bench: Bench, trials: Trials[Known, Move], spec_of: Callable[[Move, Known], TrialSpec]) -> None:
        self._bench = bench
        self._trials = trials
        self._spec_of = spec_of
        self._devices: tuple[str, ...] = ()

    def find(self, known: Known) -> None:
        """Find the GPUs that trials may run on, and say which they are or why there are none."""
        try:
            self._devices = self._undisturbed(known)
        except UnusableError as problem:
            self._bench.emit(Said(f"trials run on one GPU only, one after the other: {problem}"))
        if self._devices:
            self._bench.emit(Said(f"trials run side by side on {1 + len(self._devices)} GPUs, with the same results"))

    def _undisturbed(self, known: Known) -> tuple[str, ...]:
        """The GPUs on which the baseline, run on all of them at once, is as fast as alone. Raises UnusableError."""
        bench, devices = self._bench, other_gpus(known.plan.facts, self._bench.request.target)
        if not devices:
            return ()
        cost_s = bench.expected_s({}) + bench.budget.build_s  # other GPUs build the target anew
        if not bench.budget.allows(cost_s / POLICY.baseline_share):
            raise UnusableError("finding out whether trials disturb each other takes over a tenth of the time left")
        once = {device: iter((bench.spec(f"baseline on {device}", {}),)) for device in devices}
        waiting = {device: partial(next, spec, None) for device, spec in once.items()}
        own, others = bench.run_beside(bench.spec("baseline, side by side", {}), waiting)
        results = [own, *(result for _, result in others)]
        if not all(result.measured for result in results):
            raise UnusableError("the baseline failed where it ran on several GPUs at the same time")
        alone_ms = known.judge.speed(BASELINE)[0]
        longer = {result.device: speed(result)[0] / alone_ms - 1 for result in results}
        alike = tuple(device for device in devices if abs(longer[device]) <= _LARGEST_DIFFERENCE)
        if alike and abs(longer[own.device]) <= _LARGEST_DIFFERENCE:
            return alike
        much = format_percent(max(map(abs, longer.values())), digits=1)
        raise UnusableError(f"the baseline's step differs by {much} while it runs on {len(results)} GPUs at once")

    def stop(self) -> None:
        """Run no more trials on other GPUs."""
        self._devices = ()

    def moves_beside(self, move: Move, known: Known) -> list[Move]:
        """The moves that may be measured on other GPUs beside this move, the best first; none without such GPUs."""
        if not self._devices or move.kind not in _KINDS_BESIDE:
            return []
        catalog, facts = self._bench.catalog, known.plan.facts
        left = facts.hardware.host.usable_cores - cores_of_a_trial(facts, move.settings, catalog)
        longest_s = _LATEST_END * self._trials.cost_s(move, known)
        found = {move.settings: move}
        for other in rank(moves(known), known, self._trials):
            fits = cores_of_a_trial(facts, other.settings, catalog) * len(self._devices) <= left
            short = self._trials.cost_s(other, known) <= longest_s and not catalog.environment(other.settings)
            if other.kind in _KINDS_BESIDE[move.kind] and fits and short:
                found.setdefault(other.settings, other)
        return list(found.values())[1:]

    def measure(self, move: Move, others: list[Move], known: Known) -> Evidence:
        """Measure a move, and others on other GPUs until it has ended."""
        budget, waiting, move_of = self._bench.budget, list(others), dict[str, Move]()
        until_s = budget.spent_s + _LATEST_END * self._trials.cost_s(move, known)

        def next_spec() -> TrialSpec | None:
            short = [other for other in waiting if budget.spent_s + self._trials.cost_s(other, known) <= until_s]
            if not short:
                return None
            waiting.remove(short[0])
            spec = self._spec_of(short[0], known)
            move_of[spec.log_path] = short[0]
            return spec

        own, results = self._bench.run_beside(self._spec_of(move, known), dict.fromkeys(self._devices, next_spec))
        measured = [(move_of[spec.log_path], result) for spec, result in results if not result.disturbed]
        beside = tuple((other, Evidence(runs=((other.settings, result),))) for other, result in measured)
        return Evidence(runs=((move.settings, own),), others=beside)
