"""Caching allocator

What it does: Makes PyTorch's CUDA caching allocator use expandable segments, by setting `PYTORCH_CUDA_ALLOC_CONF`.

Why it helps: A segment that is split into blocks of many sizes cannot be freed: its memory stays reserved but
unusable. Expandable segments leave fewer gaps, so a larger batch fits.

When it does not: It saves memory, not time. If shapes repeat, the default reserves little more than it needs.
PyTorch reads the variable before the first allocation: set it in the environment of the script.

Numerics: exact: the same kernels run at other addresses.

References: PyTorch documentation, CUDA semantics, Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF.
"""

from advisor.figures.formatting import format_bytes
from advisor.recipe import CUDA, Facts, Proposal, Recipe, Skip, Stage, Value

_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_CONFIGURATIONS: dict[Value, str] = {"default": "", "expandable_segments": "expandable_segments:True"}
# With less reserved memory, the gap comes from rounding segments to 2 or 20 MiB, not from fragmentation.
_SMALLEST_RESERVED_BYTES = 256 * 2**20
_FRAGMENTED = 1.1


class Allocator(Recipe):
    key = "memory.allocator"
    devices = CUDA
    stage = Stage.ENVIRONMENT
    saves_memory = True
    gain = 1.0  # tests/gpu/RESULTS.md: no gain. The speed stayed within 1 % on most workloads
    codes = {
        value: f'import os\n\nos.environ["{_VARIABLE}"] = "{text}"  # before the first CUDA allocation\n'
        for value, text in _CONFIGURATIONS.items()
    }

    def candidates(self, facts: Facts) -> Proposal:
        allocated, reserved = facts.peak_allocated_bytes, facts.peak_reserved_bytes
        if not allocated or not reserved:
            return Skip("the baseline's memory is not known, so fragmentation cannot be told")
        if reserved < _SMALLEST_RESERVED_BYTES or reserved < _FRAGMENTED * allocated:
            return Skip(f"{format_bytes(reserved)} are reserved for {format_bytes(allocated)} in use: no fragmentation")
        return ["expandable_segments"]

    def environment(self, value: Value) -> dict[str, str]:
        return {_VARIABLE: _CONFIGURATIONS[value]}
