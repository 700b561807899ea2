"""Transforms on the GPU

What it does: Removes the last transforms from a torchvision dataset (`ToDtype`, `ConvertImageDtype`, `Normalize`) and
runs them on whole batches after the copy to the GPU, on the batch's first tensor with four dimensions.

Why it helps: Workers have less to do. Images that stay in uint8 take a quarter of the bytes in the queue, in pinned
memory and in the copy. The GPU converts and normalises a batch in one pass over its memory.

When it does not: Decoding and resizing, usually the larger part, stay in the workers. Random transforms stay too: on a
whole batch they would change every sample in the same way. A step that does not wait for its data gains nothing. Only
transforms in the dataset's attribute `transform` can be moved. Do not use it if they also run on a second image.

Numerics: close: the same formulas, rounded by another device.

References: torchvision documentation, Transforming images, videos, boxes and more, Performance considerations.
"""

from dataclasses import replace
from typing import Any

from advisor.errors import RefusedError
from advisor.recipe import CUDA, Components, LoaderRecipe
from advisor.records import Bottleneck, Facts, LoaderFacts, Phase, Proposal, Skip, Value

_CODE = """\
steps = loader.dataset.transform.transforms
loader.dataset.transform = torchvision.transforms.v2.Compose(steps[:-2])  # without ToDtype and Normalize
on_device = torchvision.transforms.v2.Compose(steps[-2:])
# in the loop: images = on_device(images.to(device, non_blocking=True))
"""
_NONE = (
    "the dataset's attribute transform does not end in a transform that can run on whole batches (ToDtype, "
    "ConvertImageDtype or Normalize of torchvision)"
)


class GpuTransforms(LoaderRecipe):
    key = "data.transforms_on_device"
    devices = CUDA
    attacks = frozenset({Bottleneck.INPUT, Bottleneck.COPY})
    usual = frozenset({True})
    codes = {True: _CODE}
    phases = frozenset({Phase.DATA_WAIT, Phase.HOST_TO_DEVICE})
    gain = 1.3
    saves = {Phase.DATA_WAIT: 0.5}  # tests/gpu/RESULTS.md: 1.71x alone and 2.14x in a stack of JPEG images
    here = {True: "The dataset's transforms from {workload.loader.movable_transforms[0]} on can be moved."}

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        return [True] if loader.movable_transforms else Skip(_NONE)

    def options(self, value: Value) -> dict[str, Any]:
        return {}  # new arguments are not enough: the step also has to apply the transforms

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.step.device_loader import OnDevice, without_last_transforms
        from advisor.step.loader import rebuild

        if value and workload.has_loader:
            dataset, moved = without_last_transforms(workload.data.dataset)
            if not moved:
                raise RefusedError(_NONE)
            workload.data = rebuild(workload.data, dataset=dataset)
            workload.plan = replace(workload.plan, device_transform=OnDevice(moved))
