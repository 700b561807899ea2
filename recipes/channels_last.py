"""Channels-last memory format

What it does: Stores the convolutions' weights and the batches with the channels innermost (NHWC, or NDHWC for volumes)
instead of NCHW. Shapes and indexing stay the same; only the strides change.

Why it helps: Tensor cores and vector units read neighbouring channels, so no convolution has to transpose its input.
The pointwise layers between convolutions keep the format.

When it does not: Models that spend little time in convolutions gain nothing. A layer without a channels-last kernel
converts back and forth, which can cost more than the convolutions gain. In float32 the gain is often small, so it is
tried with half precision too.

Numerics: close: the library picks other kernels, which sum in another order.

References: PyTorch tutorial, Channels Last Memory Format in PyTorch. PyTorch Performance Tuning Guide.
"""

from dataclasses import replace

from advisor.recipe import Components, Recipe, Stage, is_host_bound, runs_in_half, unless_computed
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value


class ChannelsLast(Recipe):
    key = "model.memory_format"
    values = ("contiguous", "channels_last", "channels_last_3d")
    plan_field = "memory_format"
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY})
    usual = frozenset({"channels_last", "channels_last_3d"})
    stage = Stage.MODEL
    codes = {"contiguous": "model = model.to(memory_format=torch.contiguous_format)\n"}
    shown = (
        "model = model.to(memory_format=torch.{value})\n"
        "# in the loop: inputs = inputs.to(device, memory_format=torch.{value})\n"
    )

    def candidates(self, facts: Facts) -> Proposal:
        if nothing := unless_computed(facts, "conv2d", "conv3d", reason="the step computes no 2-D or 3-D convolution"):
            return nothing
        images, volumes = facts.computes("conv2d"), facts.computes("conv3d")
        if images and volumes:
            return Skip("the model has 2-D and 3-D convolutions, and converting it as a whole takes one format only")
        return ["channels_last"] if images else ["channels_last_3d"]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: 1.24x to 1.43x on an H200, no gain on small models; 1.03x and 1.15x on a CPU.
        return 1.2 if facts.on_cuda and (runs_in_half(facts) or not is_host_bound(facts)) else 1.05

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.step.optimizer import follow_parameters

        self.run_code(workload, value)
        follow_parameters(workload.optimizer)
        workload.plan = replace(workload.plan, memory_format="none" if value == "contiguous" else str(value))
