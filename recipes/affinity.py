"""Processor affinity

What it does
------------
Limits the process to one hardware thread of each physical core (`physical`), or to the cores of the first NUMA node
(`node`), with as many threads for PyTorch.

Why it helps
------------
Two hardware threads of a core share its arithmetic units: a second one adds overhead where the first keeps them busy.
Memory of another NUMA node is farther away, and threads that move between nodes leave their data behind.

When it does not
----------------
A step that waits for memory can use the second hardware thread; a step that needs the bandwidth of all nodes loses that
of the others. DataLoader workers inherit the limit.

Numerics
--------
close: another number of threads adds in another order.

References
----------
PyTorch Performance Tuning Guide, Utilize Non-Uniform Memory Access (NUMA) Controls. Linux manual, sched_setaffinity(2).
"""

from advisor.recipe import CPU, Recipe, Stage
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value


class Affinity(Recipe):
    key = "cpu.affinity"
    values = ("all", "physical", "node")
    devices = CPU
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY})
    stage = Stage.GLOBAL
    # Expected speed-up: No machine of RESULTS.md had a choice; PyTorch's guide reports a few per cent.
    gain = 1.03

    def candidates(self, facts: Facts) -> Proposal:
        host = facts.hardware.host
        values: list[Value] = []
        if host.physical_cores < host.usable_cores:
            values.append("physical")
        if host.numa_nodes > 1:
            values.append("node")
        return values or Skip("one NUMA node with one hardware thread per usable core leaves nothing to choose")

    def code(self, value: Value) -> str:
        if value == self.default:
            return "# the process may use every core\n"
        from advisor.step import source

        call = f'cores = chosen_cores("{value}")\nos.sched_setaffinity(0, cores)\ntorch.set_num_threads(len(cores))\n'
        return f"{source('cores')}\n\n{call}"
