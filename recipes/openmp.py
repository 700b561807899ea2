"""OpenMP threads

What it does
------------
`bind` keeps each of OpenMP's threads on a core of its own (`OMP_PROC_BIND`, `OMP_PLACES`, static schedule). `iomp`
preloads Intel's OpenMP library in place of GNU's, with compact affinity and a short wait after each parallel part.

Why it helps
------------
An operator on the CPU is a parallel loop over a few milliseconds at most. A thread that the system moves between cores
loses its caches, and one that is asleep when the next loop begins has to be woken first.

When it does not
----------------
Bound threads suffer when anything else runs on their cores: DataLoader workers inherit the binding of the process that
forks them, so `bind` is not tried beside them. On few cores there is little to place. The variables are read when the
library is loaded: they belong into the environment of the script.

Numerics
--------
exact: the same loops with the same number of threads.

References
----------
PyTorch Performance Tuning Guide, Utilize OpenMP, and Intel OpenMP Runtime Library. OpenMP 5.2
specification, chapter 21.
"""

import os
from collections.abc import Mapping

from advisor.machine.toolchain import shared_library
from advisor.recipe import CPU, Recipe, Stage
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value, Values

_BIND = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores", "OMP_SCHEDULE": "static"}
_INTELS = "iomp5"  # the library, as the package intel-openmp installs it, too
_IOMP = {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}


class OpenMp(Recipe):
    key = "cpu.openmp"
    values = ("default", "bind", "iomp")
    devices = CPU
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY})
    stage = Stage.ENVIRONMENT
    # Expected speed-up: 1.02x (tests/gpu/RESULTS.md).
    gain = 1.02
    codes = {"default": "# OpenMP places its threads\n"}

    def candidates(self, facts: Facts) -> Proposal:
        if facts.workload.usable_cores == 1:
            return Skip("one core leaves nothing to place")
        return ["bind", "iomp"] if shared_library(_INTELS) else ["bind"]

    def conflict(self, value: Value, settings: Values) -> str | None:
        if value == "bind" and settings.get("data.num_workers"):
            return "DataLoader workers would inherit the one core that cpu.openmp: bind leaves the main thread"
        return None

    def environment(self, value: Value) -> Mapping[str, str]:
        if value == "bind":
            return _BIND
        if value == "iomp":
            return {"LD_PRELOAD": shared_library(_INTELS) or "libiomp5.so", **_IOMP}
        # What the user has set is emptied to measure it off; otherwise there is nothing to change.
        on = "OMP_PROC_BIND" in os.environ or "libiomp5" in os.environ.get("LD_PRELOAD", "")
        return {name: "" for name in (*_BIND, *_IOMP, "LD_PRELOAD") if on and os.environ.get(name)}
