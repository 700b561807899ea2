"""CPU threads

What it does: Sets how many threads share an operation (`torch.set_num_threads`). 0 is PyTorch's own number: one thread
for each physical core.

Why it helps: Fewer threads leave cores to the DataLoader's workers and to other programs, and wait less for each other
in small operations. In a container PyTorch may count cores that it cannot use.

When it does not: Large matrix products and convolutions on an idle machine use all physical cores well. Hyper-threads
share vector units, so more threads than physical cores seldom help. If other programs caused the gain, it ends with
them.

Numerics: close: another number of threads sums in another order.

References: PyTorch documentation, torch.set_num_threads. PyTorch Performance Tuning Guide, Utilize OpenMP.
"""

from advisor.recipe import CPU, Bottleneck, Facts, Proposal, Recipe, Skip, Stage, Value, WholeNumbers

# Expected speed-up if other programs want cores: all threads wait for a thread without a core. A factor; a cautious
# figure: beside nine programs, one thread was ten times as fast as two and more (tests/gpu/RESULTS.md).
_GAIN_IN_A_CROWD = 1.5


class Threads(Recipe):
    key = "cpu.threads"
    values = WholeNumbers(0, such_as=(0, 1, 2))
    devices = CPU
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY})
    stage = Stage.GLOBAL
    gain = 1.02  # tests/gpu/RESULTS.md: all cores are in use already; one of two gave 0.52x
    codes = {0: "# PyTorch chooses the number of threads\n"}
    shown = "torch.set_num_threads({value})\n"

    def suits(self, facts: Facts, value: Value) -> bool:
        return value == _left_by_others(facts)

    def gain_for(self, facts: Facts, value: Value) -> float:
        return _GAIN_IN_A_CROWD if self.suits(facts, value) else super().gain_for(facts, value)

    def candidates(self, facts: Facts) -> Proposal:
        workload, usable = facts.workload, facts.hardware.host.usable_cores
        left_by_workers = usable - (workload.loader.num_workers if workload.loader else 0)
        physical = min(facts.hardware.host.physical_cores, usable)
        wanted = {physical, usable // 2, left_by_workers, usable, _left_by_others(facts)}
        values = sorted(value for value in wanted if value >= 1 and value != workload.threads)
        return [*values] or Skip(f"{workload.threads} threads on {usable} usable cores leave nothing else to try")

    def why(self, facts: Facts, value: Value) -> str:
        if not self.suits(facts, value):
            return super().why(facts, value)
        host = facts.hardware.host
        return (
            f"Other programs used {host.foreign_cores:.1f} of {host.logical_cores} cores: the baseline's "
            f"{facts.workload.threads} threads always wait for one without a core"
        )


def _left_by_others(facts: Facts) -> int:
    """Return how many threads get a core of their own beside other programs; 0 if all present threads do.

    The result is at least half of them: other programs get at most half of the time on the baseline's cores.
    """
    host = facts.hardware.host
    threads = min(facts.workload.threads, host.logical_cores)
    return max(1, threads // 2, host.free_cores) if host.free_cores < threads else 0
