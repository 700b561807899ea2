"""Denormals flushed to zero

What it does
------------
Has the CPU give zero in place of a float32 result below 1.2e-38, the smallest normal number, and read such an input
as zero (`torch.set_flush_denormal(True)`). The mode belongs to a thread, and a thread passes it on to those that it
starts: the threads of OpenMP that run already are ended, so that the next operation starts new ones with the mode.

Why it helps
------------
Arithmetic on denormal numbers takes many times as long on most x86 processors. They appear where values decay
towards zero: gradients of saturated units, momenta of parameters that get no gradient, recurrent states.

When it does not
----------------
Ordinary weights and activations hold no denormal number, and then there is nothing to gain; ARM processors handle
them at nearly full speed. Some CPUs have no such mode, and the trial says so. Sparse gradients and long training
runs are the case to try it on.

Numerics
--------
close: what was smaller than 1.2e-38 becomes zero.

References
----------
PyTorch documentation, torch.set_flush_denormal. PyTorch Performance Tuning Guide, CPU specific optimizations.
Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, MXCSR, flush-to-zero and
denormals-are-zeros. OpenMP API Specification, omp_pause_resource_all.
"""

from advisor.recipe import CPU, Recipe, Stage
from advisor.records import Bottleneck, Facts, Proposal

_SET = """\
if not torch.set_flush_denormal(True):
    raise RuntimeError("this CPU cannot flush denormal numbers (those with SSE3 and 64-bit ARM can)")
"""
_UNSET = "torch.set_flush_denormal(False)\n"
# A new thread inherits its floating-point control register (fenv(3)); 1 is `omp_pause_soft` of OpenMP 5.0.
_END_THREADS = """\
import ctypes

# Threads of OpenMP that run already keep their mode: they are ended, and new ones start with the one set here.
end_threads = getattr(ctypes.CDLL(torch._C.__file__), "omp_pause_resource_all", None)
if end_threads is not None:
    end_threads(1)
"""


class FlushDenormal(Recipe):
    key = "cpu.flush_denormal"
    devices = CPU
    attacks = frozenset({Bottleneck.COMPUTE})
    stage = Stage.GLOBAL
    keeps_code = True  # a mode of the processor's
    # Expected speed-up: Never shown to help (tests/gpu/RESULTS.md).
    gain = 1.0
    codes = {True: _SET + _END_THREADS, False: _UNSET + _END_THREADS}

    def candidates(self, facts: Facts) -> Proposal:
        return [True]
