"""Attention kernel

What it does
------------
Permits one kernel only for `scaled_dot_product_attention`: flash (FlashAttention-2), cudnn (cuDNN's fused attention),
efficient (memory-efficient attention) or math (products and softmax). With `auto` PyTorch takes the first that can.

Why it helps
------------
The order is the same for all shapes, and which kernel is fastest depends on sequence length, head size, mask and GPU.
The fused kernels do not write the matrix of scores to memory, as math does.

When it does not
------------
PyTorch's choice is often the fastest, and attention over short sequences is a small part of a step. Flash and cudnn
need float16 or bfloat16; flash takes no arbitrary mask. A kernel that cannot run one of the model's calls fails the
trial with that reason. Math shows what attention written by hand costs; on a CPU it can win on very short sequences.

Numerics
------------
close: each kernel adds up in another order, and draws the random numbers of dropout in another way.

References
------------
PyTorch documentation, torch.nn.attention.sdpa_kernel. Dao, FlashAttention-2, ICLR 2024.
"""

from advisor.recipe import Components, Recipe, runs_in_half, unless_computed
from advisor.records import Bottleneck, Facts, Phase, Proposal, Value

_BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
_CODE = """\
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.{}):
    output = model(inputs)
    # with activation checkpoints, loss.backward() too: it runs parts of the forward pass again
"""
_CODES: dict[Value, str] = {
    "auto": "".join(
        f"torch.backends.cuda.enable_{name}_sdp(True)\n" for name in ("flash", "cudnn", "mem_efficient", "math")
    ),
    **{name: _CODE.format(backend) for name, backend in _BACKENDS.items()},
}
_NO_ATTENTION = "the model has no nn.MultiheadAttention, and the step calls no scaled_dot_product_attention"


class Sdpa(Recipe):
    key = "attention.backend"
    values = tuple(_CODES)
    plan_field = "attention_backend"
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY})
    saves_memory = True
    phases = frozenset({Phase.FORWARD, Phase.BACKWARD})
    # tests/gpu/RESULTS.md: cudnn 0.99x, flash 0.75x to 0.98x, efficient 0.43x and 0.93x, math 0.63x; PyTorch picks well
    gains = {"flash": 0.98, "cudnn": 1.0, "efficient": 0.8, "math": 0.6}
    codes = _CODES

    def candidates(self, facts: Facts) -> Proposal:
        if nothing := unless_computed(facts, "attention", reason=_NO_ATTENTION):
            return nothing
        if not facts.on_cuda:
            return ["flash", "math"]
        if runs_in_half(facts) and facts.workload.multiplies_in("bfloat16"):
            return ["flash", "cudnn", "efficient", "math"]
        return ["efficient", "math"]

    def apply(self, workload: Components, value: Value) -> None:
        if value == self.default:
            self.run_code(workload, value)
        super().apply(workload, value)
