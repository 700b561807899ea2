"""Outputs padded

What it does
------------
Gives each linear layer whose number of outputs is off the multiple (8, or 64) rows of zeros up to the next, and returns
a view of its results without them: a vocabulary of 50,257 is computed as one of 50,304, and the loss sees 50,257. An
embedding that shares the weight goes on sharing it. Layers that would grow by more than an eighth stay, and those whose
weights are used by others than linear layers and embeddings.

Why it helps
------------
Tensor cores multiply tiles. With rows that are not a multiple of 16 bytes long the library falls back to slower
kernels, or copies first. It matters in half precision and TF32.

When it does not
------------
In float32 without TF32 no tensor core is used. The next operation reads a view whose rows are not adjacent: for a small
layer that can cost more than it gains. `parameters()` have the padded shapes, so copy a model for an average after it
was prepared, not before. Do not prune, parametrize or replace weights of padded layers.

Numerics
------------
close: the rows of zeros get no gradient and stay zero. It is not tried beside an optimizer that looks at a tensor's
shape or mean (Adafactor, Muon), or one of another package. State dicts of the model keep the usual shapes; those of the
optimizer do in `prepare`, not in an exported file.

References
------------
NVIDIA Deep Learning Performance, Matrix Multiplication: Tensor Core Requirements. PyTorch Performance Tuning Guide.
"""

from advisor.recipe import CUDA, Components, Recipe, Stage, WholeNumbers, code_of, lacks_units, runs_in_half
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value, Values

# Optimizers of torch.optim whose update depends on a tensor's shape or mean, which rows of zeros change.
_READ_SHAPES = frozenset({"Adafactor", "Muon"})


class PadDims(Recipe):
    key = "model.pad_to_multiple"
    default = 1
    values = WholeNumbers(1, such_as=(1, 2, 8, 64))
    devices = CUDA
    attacks = frozenset({Bottleneck.COMPUTE})
    stage = Stage.MODEL
    codes = {1: "# linear layers keep their sizes\n"}
    excludes = {
        "precision.quantize": "quantized layers have their own kernels, which take no padding",
        "precision.float8": "float8 layers replace the padded ones",
    }

    def candidates(self, facts: Facts) -> Proposal:
        workload = facts.workload
        if lacking := lacks_units(facts, "float16", "tensor cores, which the multiples are for"):
            return lacking
        optimizer = workload.optimizer
        if optimizer is not None and (not optimizer.builtin or optimizer.name in _READ_SHAPES):
            return Skip(f"{optimizer.full_name} may look at a weight's shape or mean, which rows of zeros would change")
        multiples = [multiple for multiple, _, _ in workload.paddable_outputs]
        return multiples or Skip("no linear layer's number of outputs is off a multiple of 64 by an eighth at most")

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: 1.29x and 1.03x on GPT-2; 24.8 to 23.3 ms with autotuned kernels. Tensor cores only.
        fast = runs_in_half(facts) or facts.current("precision.float32_matmul", "highest") != "highest"
        return 1.06 if fast else 1.0

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.step.optimizer import follow_parameters
        from advisor.step.padding import pad_outputs

        follow_parameters(workload.optimizer, pad_outputs(workload.model, int(value), workload.optimizer))

    def code(self, value: Value) -> str:
        padded = value != self.default
        return code_of("padding", f"pad_outputs(model, {value}, optimizer)") if padded else super().code(value)

    def conflict(self, value: Value, settings: Values) -> str | None:
        if value != 1 and settings.get("optimizer.state") == "adafactor":
            return "Adafactor averages over the rows of a weight, and would count the rows of zeros"
        return super().conflict(value, settings)

    def why(self, facts: Facts, value: Value) -> str:
        found = {multiple: (layers, widest) for multiple, layers, widest in facts.workload.paddable_outputs}
        if value not in found:
            return super().why(facts, value)
        layers, widest = found[int(value)]
        which = "One linear layer is" if layers == 1 else f"{layers} linear layers are"
        return f"{which} off the multiple of {value}; the widest has {widest:,} outputs."
