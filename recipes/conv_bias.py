"""No bias before a norm

What it does
------------
Lets every convolution whose result goes to a batch norm (or an instance norm) and nowhere else compute without its
bias. They are found by tracing the model (torch.fx, or torch.export on a batch where that fails), not by name. A
convolution that something else reads too, that is shared and not always followed by the same norm, that has a hook, or
in training one before a frozen norm, keeps its bias.

Why it helps
------------
The norm subtracts the mean of each channel, and with it whatever the bias has added. The bias costs an addition in the
forward pass, a sum over the whole gradient in the backward pass, and its part of the optimizer's step.

When it does not
----------------
Where the library fuses the bias into the convolution, only the backward pass gains. torch.compile may fuse the rest.
In inference `model.fold_batch_norm` removes the norm altogether, which is worth more. A loop that freezes its norms
later, asks for the gradients of the biases, or evaluates without `torch.no_grad()` gets them back, and what was gained
is lost. One that sets an attribute later, so that the forward pass reads the result of such a convolution elsewhere,
does not: leave the setting out there.

Numerics
--------
close: the same outputs and gradients up to rounding. The parameters stay in the model and the optimizer, as zeros
without gradients (`grad` is None, `requires_grad` False), and running means take the bias off, so evaluation stays the
same too. The state dict has these zeros; what is loaded may have other biases, which the running means take off.

References
----------
PyTorch Performance Tuning Guide, Disable bias for convolutions directly followed by a batch norm. NVIDIA ECCV 2020
tuning guide. Ioffe and Szegedy, Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate
Shift, ICML 2015, section 3.2.
"""

from advisor.recipe import Components, Recipe, Stage
from advisor.records import Bottleneck, Facts, Mode, Proposal, Skip, Value
from advisor.step import source


class ConvBias(Recipe):
    key = "model.conv_bias_before_norm"
    default = True
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    partners = frozenset({"autocast", "channels_last"})
    usual = frozenset({False})
    stage = Stage.MODEL
    order = -20  # before layers change their type, and before folding puts a bias back
    # Expected speed-up: 1.08x on an autoencoder, 1.01x and less elsewhere (tests/gpu/RESULTS.md).
    gain = 1.02

    def candidates(self, facts: Facts) -> Proposal:
        workload = facts.workload
        if workload.biased_conv_norm_pairs:
            return [False]
        if workload.norm_pairs_problem:
            return Skip(f"the model {workload.norm_pairs_problem}")
        return Skip("the model has no convolution with a bias whose result goes to a batch norm only")

    def apply(self, workload: Components, value: Value) -> None:
        if not value:
            from advisor.step.conv_bias import remove_conv_biases

            remove_conv_biases(workload.model, workload.plan.mode is Mode.TRAIN, workload.data)

    def code(self, value: Value) -> str:
        if value:
            return "# convolutions keep their biases\n"
        code = source("conv_bias")
        return f"{code}\n\nremove_conv_biases(model, optimizer is not None, loader)\n"

    def why(self, facts: Facts, value: Value) -> str:
        count = facts.workload.biased_conv_norm_pairs
        if value or not count:
            return super().why(facts, value)
        subject = "One convolution adds a bias" if count == 1 else f"{count} convolutions add a bias"
        return f"{subject} that the norm behind subtracts again."
