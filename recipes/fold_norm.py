"""Batch norms folded

What it does
------------
Multiplies each batch norm of inference into the weights of the convolution or linear layer before it, and puts an
Identity in its place. The pairs are found by tracing the model (torch.fx, or torch.export on a batch where that fails):
the layer's result has to go to the norm only, and the norm has to get nothing else, so branches and layers that are
shared with others stay as they are. The model keeps its class.

Why it helps
------------
In evaluation a batch norm is a fixed scale and shift for each channel. Folded, it is no operation of its own any more:
the scale is in the weights, and the shift is the layer's bias. On the CPU a convolution adds its bias as it writes its
results, so each fold saves a pass over the activations. On CUDA it saves a kernel launch and that pass where the layer
has a bias already, and two short kernels where the norm runs in bfloat16.

When it does not
----------------
On CUDA PyTorch adds a convolution's bias in a kernel of its own. In float32, where the convolution had none, that one
takes the place of the norm's: as many launches as before, and little gained. torch.compile with `compile.freezing` does
the same, and without it still fuses the norm into what follows. Norms before their convolution, or behind an
activation, cannot be folded. The folded model can no longer be trained as before: fold a copy (`copy.deepcopy(model)`)
when you go on training, and fold again from the trained weights.

Numerics
--------
close: the products are rounded once more in the folded weights, and once less in the activations; the folding itself
is in double precision. The state dict loses the norms' entries. A checkpoint with them is folded as it is loaded.

References
----------
PyTorch documentation, torch.nn.utils.fusion. PyTorch tutorial, Building a Convolution/Batch Norm fuser with torch.fx.
Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, CVPR 2018,
section 3.2.
"""

from advisor.recipe import INFERENCE, Recipe, Stage
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value, Values


class FoldNorm(Recipe):
    key = "model.fold_batch_norm"
    modes = INFERENCE
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    partners = frozenset({"autocast", "channels_last", "half_weights"})
    usual = frozenset({True})
    stage = Stage.MODEL
    calls = "fold_norm.fold_batch_norms(model, loader)"
    codes = {False: "# batch norms stay as they are\n"}
    order = -10  # while the weights still have their precision
    # Expected speed-up: 1.31x at batch 1, 1.23x on a CPU, 1.02x at batch 128 (tests/gpu/RESULTS.md).
    gain = 1.1

    def candidates(self, facts: Facts) -> Proposal:
        workload = facts.workload
        if workload.conv_norm_pairs:
            return [True]
        if workload.norm_pairs_problem:
            return Skip(f"the model {workload.norm_pairs_problem}")
        return Skip("the model has no convolution or linear layer whose result goes to a batch norm only")

    def conflict(self, value: Value, settings: Values) -> str | None:
        if value and settings.get("model.conv_bias_before_norm") is False:
            return "folding a norm gives its convolution a bias again, so removing that first gains nothing"
        return None

    def why(self, facts: Facts, value: Value) -> str:
        count = facts.workload.conv_norm_pairs
        if not value or not count:
            return super().why(facts, value)
        return (
            f"{count} batch norm{' scales' if count == 1 else 's scale'} what the layer before could give out scaled."
        )
