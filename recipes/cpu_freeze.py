"""Frozen parameters

What it does: The compiler takes the parameters as constants: it folds what depends on them alone (a batch norm into the
convolution before it), and stores weights in the order in which kernels read them. Without `compile.mode` it compiles
in the mode `default`. Inference then runs under `no_grad` unless `infer.grad` is set.

Why it helps: Convolutions and matrix products read weights without rearranging them, and folded operations are gone.

When it does not: The weights are copied, which doubles their memory. Changes of parameters after the first call have no
effect; loading a state dict compiles everything again.

Numerics: close: folded constants are rounded once where the original rounds at every step.

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
    gain = 1.15  # tests/gpu/RESULTS.md: 1.63x on a served network, of which compiling alone gives a part
    conflicts = (
        (True, "infer.grad", "grad", "parameters can be frozen only where no gradient is recorded: use no_grad"),
        (True, "compile.scope", "regional", "frozen parameters make the code of each block different"),
    )
    codes = {True: _CODE}

    def candidates(self, facts: Facts) -> Proposal:
        nothing = "the step computes no convolution or linear layer whose weights could be packed"
        return unless_computed(facts, "conv1d", "conv2d", "conv3d", "linear", reason=nothing) or [True]
