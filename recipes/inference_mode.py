"""Gradients off for inference

What it does: Runs the forward pass under `torch.inference_mode()` or `torch.no_grad()`. `model.eval()` does neither: it
only switches dropout and batch norm, and autograd still records.

Why it helps: Autograd records nothing for a backward pass, so each activation is freed when the next layer has read it.
Inference mode also drops the version counters and view tracking of tensors.

When it does not: A loop that uses one of the two has most of the gain already. They differ by microseconds per
operation, which shows only with many small operations. Tensors made in inference mode cannot be used in autograd later.

Numerics: close: without recording, PyTorch's own attention layers (`nn.MultiheadAttention`,
`nn.TransformerEncoderLayer`) take a fused path, which differs in the last bits. Other models give the same bits.

References: PyTorch documentation, Autograd mechanics; torch.inference_mode. PyTorch Performance Tuning Guide.
"""

from advisor.recipe import INFERENCE, Bottleneck, Facts, Proposal, Recipe


class InferenceMode(Recipe):
    key = "infer.grad"
    values = ("grad", "no_grad", "inference_mode")
    plan_field = "grad_mode"
    modes = INFERENCE
    attacks = frozenset({Bottleneck.MEMORY, Bottleneck.LAUNCH})
    usual = frozenset({"no_grad"})  # unlike with inference_mode, its outputs can be used in autograd later
    saves_memory = True
    habit = True
    gain = 1.02  # tests/gpu/RESULTS.md: 1.00x to 1.02x, because it mainly saves memory
    codes = {"grad": "output = model(inputs)  # autograd records\n"}
    shown = "with torch.{value}():\n    output = model(inputs)\n"

    def candidates(self, facts: Facts) -> Proposal:
        # If the user has chosen inference_mode, the weaker no_grad is not proposed.
        chosen = facts.current(self.key, self.default) == "inference_mode"
        return ["inference_mode"] if chosen else ["no_grad", "inference_mode"]
