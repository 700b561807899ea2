"""Implementation of gradient clipping

What it does
------------
Chooses how `torch.nn.utils.clip_grad_norm_` computes the norm of all gradients and scales them: over many tensors at
once (`foreach`), or tensor by tensor (`for-loop`). Left alone, PyTorch takes foreach wherever it can.

Why it helps
------------
foreach launches a few kernels where the loop launches several for each parameter tensor.

When it does not
----------------
Where few tensors are clipped, both take no time. foreach is PyTorch's own choice by now, so mostly this prices the
loop that it replaced, or a norm that is computed by hand. Reading the norm on the host (`.item()`, or
`error_if_nonfinite=True`) costs more than either.

Numerics
--------
close: the squares are summed in another order, so the norm can differ in its last digits.

References
----------
PyTorch documentation, torch.nn.utils.clip_grad_norm_ (`foreach`).
"""

from advisor.recipe import TRAINING, Recipe
from advisor.records import Bottleneck, Facts, Phase, Proposal, Skip, Value

_FOREACH: dict[Value, str] = {"default": "", "foreach": ", foreach=True", "for-loop": ", foreach=False"}


class GradClip(Recipe):
    key = "step.clip_grad"
    values = tuple(_FOREACH)
    plan_field = "clip_grad"
    modes = TRAINING
    attacks = frozenset({Bottleneck.LAUNCH})
    inside_step = True
    phases = frozenset({Phase.OPTIMIZER})
    # Expected speed-up: for-loop 0.99x on a GPU; the default is foreach already (tests/gpu/RESULTS.md).
    gains = {"foreach": 1.01, "for-loop": 0.97}

    def candidates(self, facts: Facts) -> Proposal:
        if facts.workload.clip_norm is None:
            return Skip("the loop does not clip gradients; if it does, say so with advisor.Workload(clip_grad=1.0)")
        return ["foreach"] if facts.current(self.key, self.default) == "for-loop" else ["for-loop"]

    def code(self, value: Value) -> str:
        return (
            "loss = loss_fn(model(inputs), targets)\n"
            "loss.backward()\n"
            f"torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0{_FOREACH[value]})  # with your own norm\n"
        )
