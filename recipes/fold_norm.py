"""Batch norms folded

What it does: In inference, multiplies each batch norm into the weights of the convolution or linear layer before it
(`torch.nn.utils.fusion`), and replaces the norm by an Identity. torch.fx finds the pairs in the whole model or in the
parts that it can trace; the layer's result must go only to the norm. The model keeps its class.

Why it helps: In evaluation a batch norm is a fixed scale and shift for each channel. Each folded norm saves a pass over
the activations and, on CUDA, a kernel launch if the layer already has a bias.

When it does not: If a convolution had no bias, folding gives it one. On CUDA PyTorch adds the bias in a separate
kernel, so no launch is saved. `compile.freezing` folds norms as well. These are not folded: norms before their
convolution or after an activation, and grouped transposed convolutions. Fold a copy of the model if you train further.

Numerics: close: weights are rounded once more. Load checkpoints before: the norms leave the state dict.

References: PyTorch documentation, torch.nn.utils.fusion. PyTorch tutorial, Building a Convolution/Batch Norm fuser.
"""

from advisor.recipe import INFERENCE, Bottleneck, Facts, Proposal, Recipe, Skip


class FoldNorm(Recipe):
    key = "model.fold_batch_norm"
    modes = INFERENCE
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    usual = frozenset({True})
    order = -10  # while the weights still have their precision
    calls = (("pairs", "pairs = layers_in_a_row(model)"), ("fold_norm", "fold_batch_norms(model, pairs)"))
    conflicts = ((True, "model.conv_bias_before_norm", False, "folding a norm gives its convolution a bias again"),)
    here = {True: "Batch norms that can be folded into the layer before: {workload.conv_norm_pairs}."}
    gain = 1.1  # tests/gpu/RESULTS.md: 1.31x at batch 1, 1.23x on a CPU, 1.02x at batch 128

    def candidates(self, facts: Facts) -> Proposal:
        none = Skip("no convolution or linear layer was found whose result goes to a batch norm only")
        return [True] if facts.workload.conv_norm_pairs else none
