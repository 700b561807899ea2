"""Compiled optimizer step

What it does:
Compiles `optimizer.step()`: the update of all parameters becomes few generated kernels. Learning rates and step counts
go into tensors on the device, so schedules work. A scheduler that assigns plain numbers makes it compile again.

Why it helps:
An update of hundreds of small tensors takes a few kernels that read and write each value once. Classes without a fused
step gain too.

When it does not:
The gain is at most the optimizer's share of the step, which is small in most. Compiling the update of many tensors
takes tens of seconds. A fused implementation is as fast without compiling.

Numerics:
close: the same formula, with intermediate results rounded at other places.

References:
PyTorch tutorials, Compiling the optimizer with torch.compile, and Running the compiled optimizer with an LR scheduler.
"""

from advisor.errors import RefusedError
from advisor.machine.toolchain import missing_compiler
from advisor.recipe import CUDA, TRAINING, Components, Recipe, is_compiled
from advisor.records import Bottleneck, Facts, Phase, Proposal, Skip, Value

_FEWEST_TENSORS = 50
_NOT_COMPILED = frozenset({"LBFGS", "SparseAdam"})
_FUSED = "a fused optimizer is one kernel for many tensors already"
_SCALER = "float16 training asks the GradScaler before each update; use bfloat16"

_CODE = """\
for group in optimizer.param_groups:
    group["capturable"] = device.type == "cuda"  # of Adam and others that count their steps
    group["lr"] = torch.as_tensor(group["lr"], device=device)  # a number would be compiled in


@torch.compile
def optimizer_step():  # in the loop, in place of optimizer.step()
    optimizer.step()
"""


class CompileOptimizer(Recipe):
    key = "compile.optimizer"
    plan_field = "compile_optimizer"
    modes = TRAINING
    devices = CUDA
    attacks = frozenset({Bottleneck.LAUNCH})
    inside_step = True
    expensive = True
    phases = frozenset({Phase.OPTIMIZER})
    conflicts = ((True, "optimizer.implementation", "fused", _FUSED), (True, "precision.autocast", "float16", _SCALER))
    excludes = {"step.cuda_graph": "a compiled optimizer may compile again while step.cuda_graph records the step"}
    codes = {True: _CODE, False: "# optimizer.step() is not compiled\n"}

    def candidates(self, facts: Facts) -> Proposal:
        optimizer = facts.workload.optimizer
        if optimizer is None:
            return Skip("the workload has no optimizer")
        if not optimizer.builtin or optimizer.name in _NOT_COMPILED:
            return Skip(f"{optimizer.name} is not among the optimizers of torch.optim that can be compiled")
        if optimizer.implementation == "fused":
            return Skip(_FUSED)
        if facts.current("precision.autocast", "none") == "float16":
            return Skip(_SCALER)
        if optimizer.tensors < _FEWEST_TENSORS:
            return Skip(f"the optimizer updates {optimizer.tensors} tensors only, which is few launches already")
        return missing_compiler(facts) or [True]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: 1.49x beside a compiled model, 0.97x and 0.69x beside an eager one.
        return 1.05 if is_compiled(facts) else 0.95

    def apply(self, workload: Components, value: Value) -> None:
        if value:
            from advisor.step.optimizer import optimizers_in, torch_class

            for optimizer in optimizers_in(workload.optimizer):
                if torch_class(optimizer) is None:
                    name = type(optimizer).__name__
                    raise RefusedError(f"{name} has its own step(); only those of torch.optim are known to compile")
        super().apply(workload, value)
