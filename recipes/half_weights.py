"""Half-precision weights

What it does: Converts the whole model and every batch to bfloat16 or float16 (`model.to(torch.bfloat16)`). Unlike
autocast it keeps nothing in float32: norms, gradients and optimizer state have that type too.

Why it helps: Weights take half the bytes, and products run on the half-precision units without a cast before each.

When it does not: GPUs without fast units for the type, and CPUs without AVX-512 BF16 or AMX, only save memory. It
cannot be combined with autocast, which casts the products already. In training small updates are lost (below 1/256 of a
weight in bfloat16): compare whole training runs first. Float16 also loses small gradients: it is for inference only.

Numerics: close in inference: weights and activations are rounded to 8 (bfloat16) or 11 (float16) bits of precision.
changed in training: updates are rounded too.

References: PyTorch documentation, torch.nn.Module.to. Micikevicius et al., Mixed Precision Training, ICLR 2018.
"""

from advisor.errors import RefusedError
from advisor.recipe import Components, Recipe, Stage, is_host_bound, lacks_units
from advisor.records import Bottleneck, Facts, Mode, Proposal, Skip, Value

_CASTS_ALREADY = "precision.autocast casts the products to half precision already"


class HalfWeights(Recipe):
    key = "precision.weights"
    values = ("float32", "bfloat16", "float16")
    plan_field = "input_dtype"
    attacks = frozenset({Bottleneck.MEMORY, Bottleneck.COMPUTE})
    usual = frozenset({"bfloat16"})
    stage = Stage.MODEL
    saves_memory = True
    roundings = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
    excludes = {"precision.autocast": f"{_CASTS_ALREADY}, so half-precision weights would add rounding and no speed"}
    # PyTorch lays recurrent weights out in one piece, as cuDNN needs, only for types in this set; bfloat16 is missing.
    shown = (
        "torch.backends.cudnn.CUDNN_TENSOR_DTYPES.add(torch.{value})  # for recurrent layers\n"
        "model = model.to(torch.{value})\n"
        "if optimizer is not None and optimizer.state:\n"
        "    optimizer.load_state_dict(optimizer.state_dict())  # its state in the parameters' type\n"
        "# in the loop: inputs = inputs.to(device).to(torch.{value}), and targets unless they are whole numbers\n"
    )

    def candidates(self, facts: Facts) -> Proposal:
        workload = facts.workload
        present = facts.current(self.key, self.default)
        if present == self.default and workload.parameter_dtypes != ("float32",):
            have = ", ".join(workload.parameter_dtypes) or "no type: there are none"
            return Skip(f"the parameters are not all in float32 (they have {have})")
        if {facts.current("precision.autocast", "none"), workload.casts_inside} != {"none"}:
            return Skip(f"{_CASTS_ALREADY}; switch it off to compare the two")
        if not facts.on_cuda or workload.mode is Mode.TRAIN:
            return lacks_units(facts, "bfloat16") or ["bfloat16"]
        types = [name for name in ("bfloat16", "float16") if workload.multiplies_in(name)]
        return lacks_units(facts, "float16") or types

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: 1.38x at batch 128, 0.61x at batch 1 without a captured step; 1.40x on a CPU.
        return 1.1 if is_host_bound(facts) else 1.5

    def apply(self, workload: Components, value: Value) -> None:
        if any(tensor.is_complex() for tensor in workload.model.state_dict().values()):
            raise RefusedError(f"the model holds complex numbers, which {value} would make real")
        self.run_code(workload, value)
        super().apply(workload, value)
