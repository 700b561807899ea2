"""Gradients off for validation

What it does: Compares the time and the peak memory of a validation step (forward pass and loss in evaluation mode) in
three ways: with `model.eval()` alone, with `torch.no_grad()`, and with `torch.inference_mode()`.

Why it helps: `model.eval()` only switches dropout and batch norm: autograd still keeps every activation for a backward
pass that never comes. Without recording, validation fits larger batches and often runs faster.

When it does not: The training step does not change. The three ways are timed in the baseline's profile and shown in a
separate table, not ranked with the candidates. For inference, the recipe inference_mode measures them.

Numerics: exact: training does not change. PyTorch's attention layers take a fused path, which differs in the last bits.

References: PyTorch documentation, Autograd mechanics, Locally disabling gradients. PyTorch Performance Tuning Guide.
"""

from dataclasses import replace

from advisor.figures.formatting import format_bytes, format_ms
from advisor.recipe import NEEDS_PROFILE, Bottleneck, Components, Facts, Mode, Proposal, Recipe, Skip, Stage, Value


class EvalNoGrad(Recipe):
    key = "loop.eval_grad"
    default = "no_grad"
    values = ("grad", "no_grad", "inference_mode")
    attacks = frozenset({Bottleneck.MEMORY, Bottleneck.LAUNCH})
    stage = Stage.STEP
    inside_step = True
    habit = True
    gain = 1.0  # tests/gpu/RESULTS.md: the training step does not change
    codes = {"grad": "model.eval()\noutput = model(inputs)  # autograd records\n"}
    shown = "model.eval()\nwith torch.{value}():\n    output = model(inputs)\n"

    def candidates(self, facts: Facts) -> Proposal:
        if facts.workload.mode is Mode.INFER:
            return Skip("the row inference_mode prices this: for inference the forward pass is the whole step")
        if facts.instrumented is None:
            return NEEDS_PROFILE
        rows = [row for row in facts.instrumented.habits if row.habit == self.id]
        if not rows:
            return Skip("a validation step is timed in the baseline's profile, and it could not be run there")
        memory = ["" if row.memory_bytes is None else f" and {format_bytes(row.memory_bytes)}" for row in rows]
        figures = [f"{row.way} {format_ms(row.step_ms)}{more}" for row, more in zip(rows, memory, strict=True)]
        return Skip(f"a validation step is timed apart, in the table of habits: {'; '.join(figures)}")

    def apply(self, workload: Components, value: Value) -> None:
        # In inference, the recipe inference_mode sets the same field.
        if workload.plan.mode is Mode.TRAIN:
            workload.plan = replace(workload.plan, grad_mode=str(value))
