"""Gradients off for inference

What it does: Runs the forward pass under `torch.inference_mode()` or `torch.no_grad()`. `model.eval()` does neither: it
switches dropout and batch norm, and autograd goes on recording.

Why it helps: Nothing is recorded for a backward pass, and each activation is freed when the next layer has read it.
Inference mode also drops the version counters and view tracking of tensors.

When it does not: A loop under one of the two has most of the gain already. They differ by microseconds per operation,
which shows only with many small operations. Tensors made in inference mode cannot take part in autograd later.

Numerics: close: PyTorch's own attention layers (`nn.MultiheadAttention`, `nn.TransformerEncoderLayer`) take a fused
path where nothing is recorded, and differ in the last bits. Every other model computes the same to the bit.

References: PyTorch documentation, Autograd mechanics; torch.inference_mode. PyTorch Performance Tuning Guide.
"""

from advisor.recipe import INFERENCE, Bottleneck, Facts, Proposal, Recipe


class InferenceMode(Recipe):
    key = "infer.grad"
    values = ("grad", "no_grad", "inference_mode")
    plan_field = "grad_mode"
    modes = INFERENCE
    attacks = frozenset({Bottleneck.MEMORY, Bottleneck.LAUNCH})
    usual = frozenset({"no_grad"})  # its outputs may still take part in training elsewhere
    saves_memory = True
    habit = True
    gain = 1.02  # tests/gpu/RESULTS.md: 1.00x to 1.02x: it saves memory
    codes = {"grad": "output = model(inputs)  # autograd records\n"}
    shown = "with torch.{value}():\n    output = model(inputs)\n"

    def candidates(self, facts: Facts) -> Proposal:
        # Who chose inference mode is not sent back to the weaker of the two.
        chosen = facts.current(self.key, self.default) == "inference_mode"
        return ["inference_mode"] if chosen else ["no_grad", "inference_mode"]
