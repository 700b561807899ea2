"""What ranks spend on one another: communication that nothing hides, and waiting for the slowest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from advisor.machine.device import backend_of
from advisor.portable.parallel import synchronise_gradients
from advisor.portable.plan import StepPlan
from advisor.records import Block
from advisor.runtime.step import TrainStep
from advisor.trial.measurement.clock import StepClock, steps_in
from advisor.trial.ranks.exposed import exposed_by_profiler
from advisor.trial.ranks.peers import Peers

# Steps without communication, one by one: as many as fit into this time, within bounds. Seconds, counts.
_ALONE_S = 1.0
_FEWEST_ALONE, _MOST_ALONE = 6, 40


@dataclass(frozen=True, slots=True)
class Communication:
    """Exposed communication of a step and how it was found, each rank's step alone, and the share of the straggler.

    ``straggler_share`` is how long the fastest rank waits for the slowest, as a share of a step that exchanges nothing.
    What was not measured is None or empty.
    """

    exposed_ms: float | None = None
    exposed_by: str = ""
    alone_ms: tuple[float, ...] = ()
    straggler_share: float | None = None


def communication_of(
    step: TrainStep, clock: StepClock, blocks: list[Block], plan: StepPlan, peers: Peers
) -> Communication:
    """Measure it on all ranks together. Without a profiler it is the difference to steps that exchange nothing."""
    exposed_ms = _exposed_on_all(clock, peers) if backend_of(peers.device).is_ahead else None
    by = "profiler" if exposed_ms is not None else ""
    if plan.strategy != "ddp" or plan.static_graph or plan.sync_batch_norm or plan.no_sync:
        return Communication(exposed_ms, by)
    steps_ms = [block.step_ms for block in blocks]
    everywhere = _steps_alone(step, clock, min(steps_ms) / 1e3, peers)
    usual_ms, straggler_share = straggler_of(everywhere)
    if exposed_ms is None:
        exposed_ms, by = max(0.0, median(steps_ms) - usual_ms), "difference"
    return Communication(exposed_ms, by, tuple(median(times) for times in everywhere), straggler_share)


def straggler_of(everywhere: list[list[float]]) -> tuple[float, float | None]:
    """The usual ms of the slowest rank's steps, and the share of them for which the fastest waits, 0 to 1.

    ``everywhere`` are the ms of each rank's steps. In each step another rank may be the slowest.
    """
    slowest = [max(times) for times in zip(*everywhere, strict=True)]
    fastest = [min(times) for times in zip(*everywhere, strict=True)]
    # Without the highest: one step that something outside disturbed is not how the ranks differ.
    waits = [slow - fast for slow, fast in zip(slowest, fastest, strict=True)]
    usual_ms = _trimmed_mean(slowest)
    return usual_ms, _trimmed_mean(waits) / usual_ms if usual_ms else None


def _exposed_on_all(clock: StepClock, peers: Peers) -> float | None:
    """The exposed communication of the slowest rank, in ms: it waits for nobody, so all of its is communication."""
    own = exposed_by_profiler(clock)
    everywhere = [one[0] for one in peers.gathered([math.nan if own is None else own])]
    return min(everywhere) if all(map(math.isfinite, everywhere)) else None


def _steps_alone(step: TrainStep, clock: StepClock, step_s: float, peers: Peers) -> list[list[float]]:
    """The ms of each rank's single steps that exchange nothing."""
    count = int(peers.largest(max(_FEWEST_ALONE, min(_MOST_ALONE, steps_in(_ALONE_S, step_s)))))
    synchronise_gradients(step.model, wanted=False)
    clock.run(2)
    everywhere = peers.gathered([clock.run(1).step_ms for _ in range(count)])
    synchronise_gradients(step.model, wanted=True)
    return everywhere


def _trimmed_mean(values: list[float]) -> float:
    """The mean without the highest tenth, which something outside may have disturbed."""
    kept = sorted(values)[: max(1, len(values) - len(values) // 10)]
    return sum(kept) / len(kept)
