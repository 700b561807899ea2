"""Runs of the same settings: their speed, the spread expected between them, and one result for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median

from advisor.figures.stats import Interval, ProcessSpread, mean_rate, paired_interval, ratio_interval
from advisor.recipe import MODES_WITH_GRAPHS
from advisor.records import Block, Facts, TrialResult, Value

# Assumed standard deviation between processes of one program before any repeat, as a share of the step. From H200 hosts
# and two-core machines (tests/gpu/RESULTS.md, tests/benchmarks): device-bound and captured steps repeat within 1 %,
# host-bound ones within 2 to 5 % and at times a third apart, steps that wait for a loader within 5 to 10 %. A loader in
# time for the baseline may be late for a faster step. The instrumented pass shows which kind a step is.
DEVICE_BOUND, _UNKNOWN, _HOST_BOUND, _ON_CPU = 0.01, 0.025, 0.04, 0.03
FED = _FED_IN_TIME, _FED_LATE = 0.02, 0.05
_BUSY = 0.7
# The same for two live processes in turns, which share the machine's drift; many pairs give more degrees of freedom.
IN_TURN = ProcessSpread(0.012, 30.0)


def rates(blocks: Sequence[Block]) -> list[float]:
    """Samples per second of each block."""
    return [block.samples_per_s for block in blocks]


def speed(result: TrialResult) -> tuple[float, float]:
    """Milliseconds per step and samples per second: medians over the blocks."""
    return median(block.step_ms for block in result.blocks), median(rates(result.blocks))


def mean_speed(runs: Sequence[TrialResult]) -> tuple[float, float]:
    """The step time in ms and samples per second over several runs. Each run counts once, as in their ratio."""
    steps_ms, samples_per_s = zip(*map(speed, runs), strict=True)
    return mean_rate(steps_ms), mean_rate(samples_per_s)


@dataclass(frozen=True, slots=True)
class Turns:
    """Trials of settings (``new``) and of the baseline (``old``) in turn; no selection was based on them.

    ``by_block``: one live process for each, and ``new[0].blocks[i]`` was timed next to ``old[0].blocks[i]``.
    """

    new: tuple[TrialResult, ...] = ()
    old: tuple[TrialResult, ...] = ()
    by_block: bool = False

    def with_more(self, other: Turns) -> Turns:
        """These turns and further ones. Blocks timed in turn replace earlier blocks."""
        return other if other.by_block else Turns((*self.new, *other.new), (*self.old, *other.old))

    def interval(self, spread: ProcessSpread, old_spread: ProcessSpread) -> Interval:
        """The ratio of the rates with its interval, given the spread between processes of the new and the old settings.

        For blocks in turn, the spread of two live processes is used: the session's spread contains drift as well.
        """
        new, old = ([rates(run.blocks) for run in side] for side in (self.new, self.old))
        if self.by_block:
            return paired_interval(new[0], old[0], IN_TURN)
        return ratio_interval(new, old, spread, old_spread)

    @property
    def speeds(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Milliseconds per step and samples per second of the new settings, and the same of the old ones.

        For blocks in turn, both come from the pair with the median ratio, so that they agree with the speed-up. The
        medians of each side would not agree if the machine drifts, since they come from different times.
        """
        if not self.by_block:
            return mean_speed(self.new), mean_speed(self.old)
        pairs = sorted(
            zip(self.new[0].blocks, self.old[0].blocks, strict=True),
            key=lambda pair: pair[0].samples_per_s / pair[1].samples_per_s,
        )
        new, old = zip(*pairs[(len(pairs) - 1) // 2 : len(pairs) // 2 + 1], strict=True)
        ours, theirs = ((geometric_mean([b.step_ms for b in side]), geometric_mean(rates(side))) for side in (new, old))
        return ours, theirs


def prior_spread(facts: Facts) -> float:
    """The standard deviation between processes that is assumed before any repeat."""
    if not facts.on_cuda:
        return _ON_CPU
    busy, has_loader = facts.profile.device_busy_share if facts.profile else None, facts.workload.loader is not None
    if busy is None:
        return _FED_LATE if has_loader else _UNKNOWN
    if busy < _BUSY:
        return _FED_LATE if has_loader else _HOST_BOUND
    return _FED_IN_TIME if has_loader else DEVICE_BOUND


def is_captured(settings: Mapping[str, Value]) -> bool:
    """Whether a step with these settings is wholly or mostly the replay of a graph."""
    return bool(settings.get("step.cuda_graph")) or settings.get("compile.mode") in MODES_WITH_GRAPHS


def undisturbed(runs: Sequence[TrialResult], *, least: int = 1) -> tuple[TrialResult, ...]:
    """The runs that no other program disturbed; all runs if fewer than ``least`` are undisturbed."""
    calm = tuple(run for run in runs if not run.disturbed)
    return calm if len(calm) >= least else tuple(runs)


def as_one(runs: Sequence[TrialResult], *, peak: Callable[[list[int]], float] = max) -> TrialResult:
    """One result for runs of the same settings: the calmest run, with the largest peaks and latency, median energy."""

    def known(name: str) -> list[int]:
        return [value for run in runs if (value := getattr(run, name))]

    latencies = [run.latency for run in runs if run.latency is not None]
    energies = [run.energy_j_per_sample for run in runs if run.energy_j_per_sample is not None]
    reserved, allocated = known("peak_reserved_bytes"), known("peak_allocated_bytes")
    return replace(
        min(runs, key=lambda run: bool(run.disturbed)),
        latency=max(latencies, key=lambda latency: latency.p95_ms, default=None),
        energy_j_per_sample=median(energies) if energies else None,
        peak_reserved_bytes=round(peak(reserved)) if reserved else None,
        peak_allocated_bytes=round(peak(allocated)) if allocated else None,
    )
