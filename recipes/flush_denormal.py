"""Denormals flushed to zero

What it does
------------
The CPU gives zero instead of a float32 result below 1.2e-38, the smallest normal number, and reads such an input as
zero (`torch.set_flush_denormal(True)`). Running threads keep their mode: set it at the start of the script.

Why it helps
------------
Arithmetic on denormal numbers takes many times as long on most x86 processors. They appear where values decay towards
zero: gradients of saturated units, momenta of parameters without gradients, recurrent states.

When it does not
------------
Ordinary weights and activations hold no denormal number; ARM processors handle them at nearly full speed. Some CPUs
have no such mode, and the trial says so.

Numerics
------------
close: what was smaller than 1.2e-38 becomes zero.

References
------------
PyTorch documentation, torch.set_flush_denormal. PyTorch Performance Tuning Guide, CPU specific optimizations.
"""

from advisor.errors import RefusedError
from advisor.recipe import CPU, Components, Recipe, Stage
from advisor.records import Bottleneck, Facts, Proposal, Value


class FlushDenormal(Recipe):
    key = "cpu.flush_denormal"
    devices = CPU
    attacks = frozenset({Bottleneck.COMPUTE})
    stage = Stage.GLOBAL
    keeps_code = True  # a mode of the processor's
    gain = 1.0  # tests/gpu/RESULTS.md: never shown to help
    shown = "torch.set_flush_denormal({value})\n"

    def candidates(self, facts: Facts) -> Proposal:
        return [True]

    def apply(self, workload: Components, value: Value) -> None:
        import torch

        if not torch.set_flush_denormal(bool(value)) and value:
            raise RefusedError("this CPU cannot flush denormal numbers (those with SSE3 and 64-bit ARM can)")
