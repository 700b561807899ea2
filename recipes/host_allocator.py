"""Host memory allocator

What it does: Preloads tcmalloc or jemalloc to replace the C library's malloc, for every allocation of the process.

Why it helps: A step on the CPU allocates and frees each intermediate tensor. The C library returns large ones to the
system and asks for them again, and the kernel clears the pages each time. These allocators keep the pages.

When it does not: A step of few large operators, or one that mostly computes, gains little. The process keeps more
memory. The library must be loaded before Python starts: put it into the command that starts the script.

Numerics: exact: the same arithmetic at other addresses.

References: PyTorch Performance Tuning Guide, Switch memory allocator. jemalloc and gperftools documentation.
"""

import os

from advisor.machine.toolchain import shared_library
from advisor.recipe import CPU, Bottleneck, Facts, Proposal, Recipe, Skip, Stage, Value

_LIBRARIES: dict[Value, tuple[str, ...]] = {"tcmalloc": ("tcmalloc", "tcmalloc_minimal"), "jemalloc": ("jemalloc",)}
# The values of the tuning guide: pages are kept instead of returned, and a background thread cleans up.
_JEMALLOC = "oversize_threshold:1,background_thread:true,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"


class HostAllocator(Recipe):
    key = "cpu.allocator"
    values = ("malloc", *_LIBRARIES)
    devices = CPU
    attacks = frozenset({Bottleneck.MEMORY})
    stage = Stage.ENVIRONMENT
    gain = 1.1  # tests/gpu/RESULTS.md: 1.29x and 1.23x on a convolutional network, 1.06x and 1.02x on a decoder

    def candidates(self, facts: Facts) -> Proposal:
        found = [value for value in _LIBRARIES if shared_library(*_LIBRARIES[value])]
        return found or Skip(
            "neither tcmalloc nor jemalloc is installed (on Debian and Ubuntu: libtcmalloc-minimal4 and libjemalloc2)"
        )

    def environment(self, value: Value) -> dict[str, str]:
        if value == self.default:
            already_on = any(name in os.environ.get("LD_PRELOAD", "") for name in map(str, _LIBRARIES))
            return {"LD_PRELOAD": ""} if already_on else {}
        preloaded = {"LD_PRELOAD": shared_library(*_LIBRARIES[value]) or f"lib{value}.so"}
        return {**preloaded, "MALLOC_CONF": _JEMALLOC} if value == "jemalloc" else preloaded
