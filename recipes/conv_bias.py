"""No bias before a norm

What it does: A convolution computes without its bias if its result goes only to a batch norm (or an instance norm).
torch.fx finds the pairs in the parts that it can trace. In training, biases before frozen norms stay.

Why it helps: The norm subtracts the mean of each channel, and the bias with it. The bias costs an addition in the
forward pass, a sum over the whole gradient in the backward pass, and a part of the optimizer's step.

When it does not: If the library fuses the bias into the convolution, only the backward pass gains. In inference
`model.fold_batch_norm` removes the norm itself. Do not use it if you freeze norms later, or if a hook or the other mode
(training or evaluation) also reads the convolution's result.

Numerics: close: the same outputs and gradients up to rounding. Biases stay in the model, the optimizer and the state
dict, as zeros that are not trained; the running means are corrected for them, also in `model.load_state_dict`.

References: PyTorch Performance Tuning Guide. NVIDIA ECCV 2020 tuning guide. Ioffe et al., Batch Normalization, 2015.
"""

from advisor.recipe import Bottleneck, Facts, Proposal, Recipe, Skip


class ConvBias(Recipe):
    key = "model.conv_bias_before_norm"
    default = True
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    usual = frozenset({False})
    order = -20  # before layers change their type, and before folding puts a bias back
    calls = (("pairs", "pairs = layers_in_a_row(model)"), ("conv_bias", "remove_conv_biases(model, pairs)"))
    here = {False: "Convolutions whose bias the norm after them removes: {workload.biased_conv_norm_pairs}."}
    gain = 1.02  # tests/gpu/RESULTS.md: 1.08x on an autoencoder, 1.01x and less elsewhere

    def candidates(self, facts: Facts) -> Proposal:
        none = Skip("no convolution with a bias feeds only a batch norm")
        return [False] if facts.workload.biased_conv_norm_pairs else none
