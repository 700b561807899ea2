"""Transforms on the GPU

What it does
------------
Takes the last transforms out of a dataset that uses torchvision's (`ToDtype`, `ConvertImageDtype`, `Normalize`) and
runs them on whole batches after the copy to the GPU.

Why it helps
------------
The workers do less, and where the images stay in uint8 until then, every batch takes a quarter of the bytes in the
queue, in pinned memory and in the copy. The GPU converts and normalises a batch in one pass over its memory.

When it does not
----------------
Decoding and resizing are usually the larger part of the work, and stay where they are. So do random transforms: on a
whole batch they would change every sample in the same way. A step that does not wait for its data gains nothing. A
dataset that applies transforms in code of its own, not in an attribute `transform`, cannot be split.

Numerics
--------
close: the same formulas, rounded by another device.

References
----------
torchvision documentation, Transforming images, videos, boxes and more, Performance considerations. PyTorch
Performance Tuning Guide, Enable asynchronous data loading and augmentation.
"""

from dataclasses import replace

from advisor.recipe import CUDA, Components, gain_from
from advisor.recipe.loader_recipe import LoaderRecipe, little_time_in
from advisor.records import Bottleneck, Facts, LoaderFacts, Phase, Proposal, Skip, Value


class GpuTransforms(LoaderRecipe):
    key = "data.transforms_on_device"
    devices = CUDA
    attacks = frozenset({Bottleneck.INPUT, Bottleneck.COPY})
    partners = frozenset({"num_workers", "pin_memory", "gpu_prefetch"})
    usual = frozenset({True})
    phases = frozenset({Phase.DATA_WAIT, Phase.HOST_TO_DEVICE})

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        if not loader.movable_transforms:
            return Skip(loader.transforms_problem or "the dataset has no transforms of torchvision that could be moved")
        return little_time_in(facts, self.phases) or [True]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # About half of loading is transforms: 1.71x alone and 2.14x in a stack of JPEG images (tests/gpu/RESULTS.md).
        return max(1.05, gain_from(facts.profile.share(Phase.DATA_WAIT) / 2)) if facts.profile else 1.3

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.recipe.rebuild import refusing
        from advisor.step.transforms import without_transforms

        if value and workload.has_loader:
            with refusing():
                workload.data, transform = without_transforms(workload.data)
            workload.plan = replace(workload.plan, device_transform=transform)

    def code(self, value: Value) -> str:
        from advisor.step import source

        if not value:
            return "# the dataset runs its transforms, sample by sample\n"
        return (
            f"{source('transforms')}\n\nloader, device_transform = split_or_whole(loader)\n"
            "# in the loop, when the batch is on the device: batch = device_transform(batch)\n"
        )

    def why(self, facts: Facts, value: Value) -> str:
        loader = facts.workload.loader
        moved = ", ".join(loader.movable_transforms) if loader else ""
        return f"{super().why(facts, value)} {moved} can be moved." if moved else super().why(facts, value)
