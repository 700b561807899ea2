"""Trials side by side: which GPUs beside the session's own may run trials, and which moves may be measured there.

Only single trials go to other GPUs, whose outcome does not depend on what is measured meanwhile: a candidate alone, a
setting left out, another run of the same settings. All else runs on the session's own GPU, the instruments and the
turns with the baseline while nothing else runs.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from advisor.experiment.events import Event, Said
from advisor.experiment.judging.judge import BASELINE
from advisor.experiment.judging.runs import speed
from advisor.experiment.known import Evidence, Kind, Known, Move
from advisor.experiment.measuring.bench import Bench
from advisor.experiment.moves import moves
from advisor.experiment.policy import POLICY
from advisor.experiment.search import Lab, rank
from advisor.figures.formatting import format_percent
from advisor.machine.hardware import visible_gpus
from advisor.recipe.catalog import Catalog
from advisor.records import Facts, TargetSpec, TrialSpec, Value

# The moves that may be measured on another GPU, by the move that is measured meanwhile. Beside one that may change the
# stack nothing is left out of it: that result would be about the stack as it was.
_ALONE = frozenset({Kind.ALONE, Kind.AGAIN})
KINDS_BESIDE = {
    **dict.fromkeys((Kind.LEAP, Kind.ADD, Kind.SWAP, Kind.AGAIN), _ALONE),
    **dict.fromkeys((Kind.ALONE, Kind.DROP), _ALONE | {Kind.DROP}),
}
# The cores of a trial beside its loader's workers: one launches kernels, one runs the backward pass. A count.
_CORES_OF_A_TRIAL = 2
# Those of one that compiles: half the processes that PyTorch's compiler starts at most. A count.
_CORES_TO_COMPILE = 16

# A GPU on which the step differs more is not used. Unitless.
_LARGEST_DIFFERENCE = 0.03


@dataclass(frozen=True, slots=True)
class OtherGpus:
    """The other GPUs that trials may run on. ``problem`` says why there are none although there are such GPUs."""

    devices: tuple[str, ...] = ()
    problem: str = ""


def other_gpus(facts: Facts, target: TargetSpec, environment: Mapping[str, str] = os.environ) -> OtherGpus:
    """The GPUs beside the session's own: of the same model, used by nobody, with cores for a trial on each."""
    visible = visible_gpus(facts.hardware, environment)
    if not facts.on_cuda or len(visible) < 2:
        return OtherGpus()
    own = int(target.device.partition(":")[2] or 0)
    if any(gpu.mig_enabled for gpu in visible):
        return OtherGpus(problem="the GPUs are divided into MIG instances")
    if len({gpu.name for gpu in visible}) > 1:
        return OtherGpus(problem="the GPUs are of different models")
    free = [place for place, gpu in enumerate(visible) if place != own and not gpu.processes]
    if not free:
        return OtherGpus(problem="other processes use the other GPUs")
    each, usable = cores_of_a_trial(facts, {}), facts.hardware.host.usable_cores
    if usable < 2 * each:
        return OtherGpus(problem=f"two trials at a time need {2 * each} cores, and {usable} are usable")
    return OtherGpus(tuple(f"cuda:{place}" for place in free[: usable // each - 1]))


def cores_of_a_trial(facts: Facts, settings: Mapping[str, Value], catalog: Catalog | None = None) -> int:
    """The cores that a trial of these settings keeps busy."""
    loader = facts.workload.loader
    workers = settings.get("data.num_workers", loader.num_workers if loader else 0)
    compiles = catalog is not None and catalog.compiles(settings)
    return _CORES_OF_A_TRIAL + (workers if isinstance(workers, int) else 0) + (_CORES_TO_COMPILE if compiles else 0)


def gpus_alike(devices: Sequence[str], alone_ms: float, together_ms: Sequence[float]) -> OtherGpus:
    """The GPUs on which the baseline was as fast as alone, while it ran on all of them at the same time.

    The first of ``together_ms`` is that of the session's own GPU: where it was disturbed, none of the others is used.
    """
    differences = [step_ms / alone_ms - 1 for step_ms in together_ms]
    own, *others = differences
    kept = tuple(device for device, change in zip(devices, others, strict=True) if abs(change) <= _LARGEST_DIFFERENCE)
    if abs(own) <= _LARGEST_DIFFERENCE and kept:
        return OtherGpus(kept)
    worst = max([own, *others], key=abs) if abs(own) <= _LARGEST_DIFFERENCE else own
    change = f"{format_percent(abs(worst), digits=1)} {'longer' if worst > 0 else 'less'}"
    return OtherGpus(
        problem=f"at the same time on {len(differences)} GPUs the baseline's step took {change}, more than "
        f"{format_percent(_LARGEST_DIFFERENCE)}"
    )


# The trials on other GPUs may end this many times as late as the one beside which they run is expected to. Unitless.
_LATEST_END = 1.2


class OtherGpuTrials:
    """Chooses and runs the trials on other GPUs, none until ``find`` has found some.

    ``lab`` knows what moves cost; ``spec_of`` gives the trial of a move.
    """

    def __init__(
        self,
        bench: Bench,
        emit: Callable[[Event], None],
        lab: Lab[Known, Move],
        spec_of: Callable[[Move, Known], TrialSpec],
    ) -> None:
        self._bench = bench
        self._emit = emit
        self._lab = lab
        self._spec_of = spec_of
        self._devices: tuple[str, ...] = ()
        self._trials = 0
        self._saved_s = 0.0

    def find(self, known: Known) -> None:
        """Find the GPUs that trials may run on beside the session's own, and say which they are or why there are none.

        The baseline runs on all of them at once, which shows whether they disturb each other.
        """
        found = other_gpus(known.plan.facts, self._bench.request.target)
        cost_s = self._bench.expected_s({}) + self._bench.budget.build_s  # other GPUs build the target anew
        if found.devices and not self._bench.budget.allows(cost_s / POLICY.before_leap):
            found = OtherGpus(
                problem="finding out whether trials disturb each other takes over a tenth of the time left"
            )
        elif found.devices:
            found = self._alike(found.devices, known)
        self._devices = found.devices
        if found.devices:
            count = 1 + len(found.devices)
            self._emit(Said(f"trials run side by side on {count} GPUs, which does not change their results"))
        elif found.problem:
            self._emit(Said(f"trials run on one GPU only, one after the other: {found.problem}"))

    def _alike(self, devices: tuple[str, ...], known: Known) -> OtherGpus:
        """Those of the GPUs on which the baseline is as fast as alone while it runs on all of them."""
        once = {device: iter((self._bench.spec(f"baseline on {device}", {}),)) for device in devices}
        waiting = {device: partial(next, spec, None) for device, spec in once.items()}
        own, others = self._bench.run_beside(self._bench.spec("baseline, side by side", {}), waiting)
        results = {result.device: result for _, result in others if result.measured}
        if not own.measured or len(results) < len(devices):
            return OtherGpus(problem="the baseline failed where it ran on several GPUs at the same time")
        steps_ms = [speed(own)[0], *(speed(results[device])[0] for device in devices)]
        return gpus_alike(devices, known.judge.speed(BASELINE)[0], steps_ms)

    def stop(self) -> None:
        """Run no more trials on other GPUs, and post the time that they have saved."""
        if self._trials:
            saved = f"which saved about {max(0.0, self._saved_s):.0f} s"
            self._emit(Said(f"{self._trials} trials ran on other GPUs meanwhile, {saved}"))
        self._devices, self._trials, self._saved_s = (), 0, 0.0

    def moves_beside(self, move: Move, known: Known) -> list[Move]:
        """The moves that may be measured on other GPUs beside this move, the best first; none without such GPUs."""
        if not self._devices:
            return []
        catalog, facts = self._bench.catalog, known.plan.facts
        left = facts.hardware.host.usable_cores - cores_of_a_trial(facts, move.settings, catalog)
        longest_s = _LATEST_END * self._lab.cost_s(move, known)
        found: list[Move] = []
        for other in rank(moves(known), known, self._lab):
            new = other.settings not in (move.settings, *(one.settings for one in found))
            fits = cores_of_a_trial(facts, other.settings, catalog) * len(self._devices) <= left
            short = self._lab.cost_s(other, known) <= longest_s and not catalog.environment(other.settings)
            if other.kind in KINDS_BESIDE.get(move.kind, frozenset()) and new and fits and short:
                found.append(other)
        return found

    def measure(self, move: Move, others: list[Move], known: Known) -> Evidence:
        """Measure a move, and others on other GPUs until it has ended."""
        started, until_s = self._bench.budget.spent_s, _LATEST_END * self._lab.cost_s(move, known)
        waiting, move_of = list(others), {}

        def next_spec() -> TrialSpec | None:
            left_s = until_s - (self._bench.budget.spent_s - started)
            other = next((one for one in waiting if self._lab.cost_s(one, known) <= left_s), None)
            if other is None:
                return None
            waiting.remove(other)
            spec = self._spec_of(other, known)
            move_of[spec.log_path] = other
            return spec

        own, results = self._bench.run_beside(self._spec_of(move, known), dict.fromkeys(self._devices, next_spec))
        self._trials += len(results)
        longer_s = self._bench.budget.spent_s - started - (own.wall_s or 0.0)
        self._saved_s += sum(result.wall_s or 0.0 for _, result in results) - longer_s
        measured = [(move_of[spec.log_path], result) for spec, result in results if not result.disturbed]
        return Evidence(
            runs=((move.settings, own),),
            others=tuple((other, Evidence(runs=((other.settings, result),))) for other, result in measured),
        )
