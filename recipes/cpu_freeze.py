"""Frozen parameters

What it does: The compiler treats the parameters as constants. It computes results that depend only on them in advance
(a batch norm is folded into its convolution), and stores weights in the order in which kernels read them. The default
of `compile.mode` becomes `default`, that of `infer.grad` becomes `no_grad`.

Why it helps: Convolutions and matrix products read weights without rearranging them, and folded operations are gone.

When it does not: The weights are copied, which doubles their memory. Changes of parameters after the first call have no
effect; loading a state dict compiles everything again.

Numerics: close: folded constants are rounded once, while the original operations round in every step.

References: PyTorch documentation, torch.compiler, Inductor's `freezing`. PyTorch tutorials, Inductor's CPU backend.
"""

from advisor.recipe import CPU, INFERENCE, Bottleneck, Facts, Proposal, Recipe, unless_computed

_CODE = """\
import torch._inductor.config

torch._inductor.config.freezing = True  # parameters become constants: do not change them afterwards
model.compile()
# in the loop: under torch.no_grad() or torch.inference_mode()
"""


class CpuFreeze(Recipe):
    key = "compile.freezing"
    plan_field = "freezing"
    compiles = True
    modes = INFERENCE
    devices = CPU
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY, Bottleneck.LAUNCH})
    gain = 1.15  # tests/gpu/RESULTS.md: 1.63x on a served network, including the gain of compiling
    conflicts = (
        (True, "infer.grad", "grad", "parameters can be frozen only where no gradient is recorded: use no_grad"),
        (True, "compile.scope", "regional", "frozen parameters make the code of each block different"),
    )
    codes = {True: _CODE}

    def candidates(self, facts: Facts) -> Proposal:
        nothing = "the step computes no convolution or linear layer whose weights could be packed"
        return unless_computed(facts, "conv1d", "conv2d", "conv3d", "linear", reason=nothing) or [True]
