"""Frozen parameters

What it does
------------
Lets the compiler take the parameters as constants: it folds what can be computed from them alone (a batch norm into
the convolution before it), and stores weights in the order in which the kernels read them. Alone it compiles in the
mode `default`; beside `compile.mode` in that one. Inference then runs under `no_grad` if nothing else is set.

Why it helps
------------
Convolutions and matrix products read packed weights without rearranging them at every call, and folded operations are
gone.

When it does not
----------------
The weights are copied once, so they need memory twice while the original is kept. Parameters that are changed or
loaded after the first call have no effect. Where the step is spent in other operations there is little to fold.

Numerics
--------
close: folded constants are rounded once where the original rounds at every step.

References
----------
PyTorch documentation, torch.compiler, Inductor's `freezing` option. PyTorch blog and tutorials on Inductor's CPU
backend, weight prepacking and constant folding.
"""

from advisor.recipe import CPU, INFERENCE, Recipe, unless_computed
from advisor.records import Bottleneck, Facts, Proposal, Value, Values
from advisor.step import FREEZING, compile_source

_NOTHING_TO_PACK = "the step computes no convolution or linear layer whose weights could be packed"


class CpuFreeze(Recipe):
    key = "compile.freezing"
    plan_field = "freezing"
    compiles = True
    modes = INFERENCE
    devices = CPU
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY, Bottleneck.LAUNCH})
    partners = frozenset({"compile", "inference_mode", "autocast"})
    # Expected speed-up: 1.63x on a served network, of which compiling alone gives a part (tests/gpu/RESULTS.md).
    gain = 1.15

    def candidates(self, facts: Facts) -> Proposal:
        return unless_computed(facts, "conv1d", "conv2d", "conv3d", "linear", reason=_NOTHING_TO_PACK) or [True]

    def code(self, value: Value) -> str:
        if not value:
            return "# parameters stay parameters\n"
        return f"{FREEZING}{compile_source()}# in the loop: under torch.no_grad() or torch.inference_mode()\n"

    def conflict(self, value: Value, settings: Values) -> str | None:
        if not value:
            return None
        if settings.get("infer.grad") == "grad":
            return "parameters can be frozen only where no gradient is recorded; set infer.grad to no_grad"
        if settings.get("compile.scope") == "regional":
            return "with frozen parameters no two blocks have the same code, so compile.scope regional saves nothing"
        return None
