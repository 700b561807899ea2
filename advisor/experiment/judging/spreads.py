"""The spread between processes that is expected of a kind of step before any was repeated."""

from collections.abc import Mapping

from advisor.figures.stats import ProcessSpread
from advisor.recipe import MODES_WITH_GRAPHS
from advisor.records import Facts, Value

# Standard deviation between processes of one program before any was repeated, as a share of the step. H200 hosts and
# two-core machines, tests/gpu/RESULTS.md and tests/benchmarks: device-bound and captured steps repeat within 1 %,
# host-bound ones within 2 to 5 % and now and then a third apart, those that a loader feeds within 5 to 10 %. Before the
# instrumented pass nobody knows which of them a step is.
DEVICE_BOUND, _UNKNOWN, _HOST_BOUND, _FED, _ON_CPU = 0.01, 0.025, 0.04, 0.05, 0.03
_BUSY = 0.7
# The same of two live processes that take turns, which share the machine's drift; of many pairs, so of more degrees.
IN_TURN = ProcessSpread(0.012, 30.0)


def prior_spread(facts: Facts) -> float:
    """The standard deviation between processes that is expected before any of them was repeated."""
    if not facts.on_cuda:
        return _ON_CPU
    if facts.workload.loader is not None:
        return _FED
    busy = facts.profile.device_busy_share if facts.profile else None
    if busy is None:
        return _UNKNOWN
    return _HOST_BOUND if busy < _BUSY else DEVICE_BOUND


def is_captured(settings: Mapping[str, Value]) -> bool:
    """Whether a step of these settings is a graph that is replayed, wholly or in large parts."""
    return bool(settings.get("step.cuda_graph")) or settings.get("compile.mode") in MODES_WITH_GRAPHS


def captured_prior(prior: float) -> float:
    """The prior of captured steps, where that of others is ``prior``: only a loader's spread reaches a graph."""
    return prior if prior == _FED else min(prior, DEVICE_BOUND)
