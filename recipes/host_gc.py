"""Garbage collector

What it does
------------
`freeze` collects garbage once after ten steps and then takes all objects that live out of later collections
(`gc.freeze()`): modules, parameters, compiled code. `scheduled` does the same, switches the automatic collections off
(`gc.disable()`) and collects young objects (`gc.collect(1)`) at every fiftieth step.

Why it helps
------------
A full collection looks at every object of the program. With PyTorch and its compiler imported these are 430,000, which
takes 0.2 s on two cores of a server, and the host launches nothing meanwhile. On several GPUs all wait for the slowest:
where every process collects at a time of its own, each of these pauses stops all. `scheduled` counts steps, so all
processes collect in the same step and pause once.

When it does not
----------------
Most steps leave no object behind, since Python frees what is not part of a cycle at once: a plain loop over a small
network ran three young collections in 2,000 steps and no full one, less than 0.01 % of its time. A GPU that is busy
all the time hides short pauses. With `scheduled` a cycle that survives two of its collections is never freed, nor is
the memory that it holds. Both last as long as the process: call `gc.unfreeze()` and `gc.enable()` to go back.

Numerics
--------
exact: no arithmetic is touched.

References
----------
Python documentation, gc. nanochat, pull request 477. torchtitan, GarbageCollection, which collects every 50 steps.
"""

from advisor.figures.formatting import format_percent
from advisor.recipe import Recipe, is_host_bound
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value
from advisor.step import source

# Share of the time for which the device computes, from which the host always runs ahead of it. Unitless.
_ALWAYS_BUSY = 0.97
_IN_THE_LOOP = "# in the loop, after each step: after_step()\n"


class HostGc(Recipe):
    key = "host.gc"
    values = ("default", "freeze", "scheduled")
    plan_field = "collector"
    attacks = frozenset({Bottleneck.LAUNCH})
    over_ranks = True

    def candidates(self, facts: Facts) -> Proposal:
        if facts.gpus > 1:
            return ["scheduled"]  # in step on all ranks, however busy each GPU is between its pauses
        share = facts.profile.device_busy_share if facts.profile else None
        if share is not None and share >= _ALWAYS_BUSY:
            return Skip(f"the GPU computes for {format_percent(share)} of the step, which hides what the host does")
        return ["freeze", "scheduled"]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # Full collections are rare: less than 0.01 % of a plain loop's time, more where steps leave cycles behind.
        return 1.01 if is_host_bound(facts) else 1.0

    def code(self, value: Value) -> str:
        if value == self.default:
            return "# Python collects garbage when it sees fit\n"
        return f'{source("collector")}\n\nafter_step = Collector("{value}")\n{_IN_THE_LOOP}'
