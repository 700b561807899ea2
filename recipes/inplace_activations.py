"""Activations in place

What it does
------------
Sets `inplace=True` on the activation modules whose input nobody else needs: found by tracing the model, not by name.
The input has to come fresh from an operation that does not look at it again in its backward pass (a convolution, a
linear layer, a norm, a sum), and to have no other reader. In training only activations whose gradient is the same from
the output are taken (ReLU, ReLU6, Hardtanh, LeakyReLU).

Why it helps
------------
The result overwrites the input, so one activation less is allocated, written to new memory, and kept.

When it does not
----------------
It saves memory more than time. torch.compile does the same by itself. Models whose forward branches on values or takes
optional arguments cannot be traced, and are left alone; activations that are called as functions are too. A hook that
keeps a layer's output afterwards sees it overwritten. An activation is also left alone where its input would be needed
once an attribute that is True or False is turned. Not so for a number or a global name that the forward branches on: do
not change one later in a way that makes it read the input.

Numerics
--------
exact: the same values, in other memory.

References
----------
PyTorch documentation, torch.nn.ReLU (`inplace`), and Autograd mechanics, In-place operations with autograd.
"""

from advisor.recipe import Components, Recipe, Stage
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value
from advisor.step import source


class InplaceActivations(Recipe):
    key = "model.inplace_activations"
    attacks = frozenset({Bottleneck.MEMORY})
    stage = Stage.MODEL
    saves_memory = True
    # Expected speed-up: Never shown to help speed: it saves memory (tests/gpu/RESULTS.md).
    gain = 1.0

    def candidates(self, facts: Facts) -> Proposal:
        workload = facts.workload
        if facts.current(self.key, self.default) or workload.inplace_activations:
            return [True]
        if workload.tracing_problem:
            return Skip(f"the model {workload.tracing_problem}")
        return Skip("the model has no activation module that could write over its input")

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.step import inplace

        (inplace.make_activations_inplace if value else inplace.make_activations_copy)(workload.model)

    def code(self, value: Value) -> str:
        call = "make_activations_inplace(model)" if value else "make_activations_copy(model)"
        return f"{source('inplace')}\n\n{call}\n"
