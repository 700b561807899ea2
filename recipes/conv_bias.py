"""No bias before a norm

What it does: A convolution whose result goes only to a batch norm (or an instance norm) computes without its bias.
torch.fx finds such pairs in the model, or each part that it can follow. Before frozen norms biases stay in training.

Why it helps: The norm subtracts the mean of each channel, and the bias with it. The bias costs an addition in the
forward pass, a sum over the whole gradient in the backward pass, and a part of the optimizer's step.

When it does not: Where the library fuses the bias into the convolution, only the backward pass gains. In inference
`model.fold_batch_norm` removes the norm altogether. Leave the bias where you freeze norms later, or read the
convolution's result elsewhere, as in a hook or in the other of training and evaluation mode.

Numerics: close: the same outputs and gradients up to rounding. Biases stay in the model, the optimizer and the state
dict, as zeros that are not trained; running means take off what they were, and what `model.load_state_dict` loads.

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
