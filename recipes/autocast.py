"""Automatic mixed precision

What it does: Runs matrix products and convolutions in bfloat16 or float16 (`torch.autocast`). The parameters stay in
float32. Training in float16 adds a `GradScaler`, so that small gradients do not become zero.

Why it helps: Half-precision units compute several times as fast as float32 units, and activations take half the bytes.

When it does not: Small layers gain less than the casts cost, so host-bound steps become slower. GPUs without fast
units for the type, and CPUs without AVX-512 BF16 or AMX, gain nothing.

Numerics: close: products are rounded to 8 (bfloat16) or 11 (float16) bits of precision; sums stay in float32.

References: PyTorch documentation, torch.amp. PyTorch Performance Tuning Guide. NVIDIA, Train With Mixed Precision.
"""

from advisor.recipe import Bottleneck, Facts, Mode, Proposal, Recipe, Skip, Value, is_host_bound, lacks_units

_BFLOAT16 = """\
with torch.autocast(device.type, dtype=torch.bfloat16):
    loss = loss_fn(model(inputs), targets)
loss.backward()
optimizer.step()
"""
_FLOAT16 = """\
scaler = torch.amp.GradScaler(device.type)
with torch.autocast(device.type, dtype=torch.float16):
    loss = loss_fn(model(inputs), targets)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""


class Autocast(Recipe):
    key = "precision.autocast"
    plan_field = "autocast"
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY})
    usual = frozenset({"bfloat16"})
    saves_memory = True
    roundings = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
    codes = {"none": "output = model(inputs)  # without torch.autocast\n", "bfloat16": _BFLOAT16, "float16": _FLOAT16}

    def candidates(self, facts: Facts) -> Proposal:
        workload = facts.workload
        if "float32" not in workload.parameter_dtypes:
            return Skip("the parameters are not in float32, so there is nothing to cast down")
        if workload.casts_inside != self.default:
            return Skip(f"your step has autocast on inside, for {workload.casts_inside}")
        if not facts.on_cuda:
            return lacks_units(facts, "bfloat16") or ["bfloat16"]
        types = ("bfloat16",) if workload.own_step else ("bfloat16", "float16")
        none = Skip("float16 needs a gradient scaler inside the step, which is your own")
        return lacks_units(facts, "float16") or [name for name in types if workload.multiplies_in(name)] or none

    def is_usual(self, value: Value, mode: Mode) -> bool:
        # In inference half_weights is better: it casts the weights once, autocast in each forward pass.
        return value in self.usual and mode is Mode.TRAIN

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: 1.12x to 3.41x on an H200; 0.7x on small models until a CUDA graph captures the step;
        # 1.27x to 1.70x on a CPU. float16 also scales the gradients.
        if not facts.on_cuda:
            return 1.4
        gain = 1.1 if is_host_bound(facts) else 1.5
        return gain if value == "bfloat16" or facts.workload.mode is Mode.INFER else 0.95 * gain
