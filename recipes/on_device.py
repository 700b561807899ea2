"""Data kept on the device

What it does: Keeps a dataset in the device's memory and reads each batch as a whole. It works for `TensorDataset` and
torchvision's datasets of images as bytes (MNIST, CIFAR, SVHN and similar), also in a `Subset`. These transforms run on
the batch: `ToTensor`, `Normalize`, `ToDtype`, `CenterCrop`, `Pad`, and (drawn for each sample) `RandomCrop` and flips.
The loader has no workers then. A dataset of more than a tenth of the GPU's memory stays on the host.

Why it helps: Reading small samples one by one takes longer than a step: 128 images take about 20 ms of a core, through
PIL. Read as a batch they take a fraction of that (on a GPU almost no time), and nothing is copied.

When it does not: Datasets of files are not in memory. With other transforms (`Resize`, `ColorJitter`), images are read
one by one. In your own dataset, write `__getitems__(indices)`: PyTorch's loaders call it. Later changes are not seen.

Numerics: exact: the same samples in the same order, with the same random draws as a loader without workers.

References: PyTorch documentation, torch.utils.data, Dataset, `__getitems__`. torchvision, Transforming images, v2.
"""

from collections.abc import Mapping
from typing import Any

from advisor.errors import RefusedError
from advisor.recipe import Components, Expression, LoaderRecipe
from advisor.records import Bottleneck, Facts, LoaderFacts, Phase, Proposal, Skip, Value

# Settings of workers and of copies from the host, which have no effect then.
_OF_OTHERS = (
    *("data.num_workers", "data.persistent_workers", "data.prefetch_factor", "data.pin_memory"),
    *("data.device_prefetch", "data.transforms_on_device"),
)


class OnDevice(LoaderRecipe):
    key = "data.on_device"
    usual = frozenset({True})
    attacks = frozenset({Bottleneck.INPUT, Bottleneck.COPY})
    phases = frozenset({Phase.DATA_WAIT, Phase.HOST_TO_DEVICE})
    spares = frozenset({"num_workers", "persistent_workers", "pin_memory", "prefetch", "gpu_transforms"})
    imported = "from advisor.inlined.on_device import collated, kept_on_device"
    module = "on_device"
    excludes = {key: f"data.on_device leaves {key} nothing to do" for key in _OF_OTHERS}
    order = -1  # first, because it needs the dataset as the user made it
    gain = 1.2
    # The saved share of the time to read and copy samples: at least half for large samples, almost all for small ones.
    saves = {Phase.DATA_WAIT: 0.7, Phase.HOST_TO_DEVICE: 0.7}

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        return Skip(loader.on_device_problem) if loader.on_device_problem else [True]

    def options(self, value: Value) -> Mapping[str, Any]:
        if not value:
            return {}
        kept, collate = Expression("kept_on_device(loader.dataset, device)"), Expression("collated")
        alone = {"num_workers": 0, "pin_memory": False, "persistent_workers": False, "prefetch_factor": None}
        return {"dataset": kept, "collate_fn": collate, **alone}

    def apply(self, workload: Components, value: Value) -> None:
        from advisor.step.loader import on_device_problem

        if value and workload.has_loader and (problem := on_device_problem(workload.data)):
            raise RefusedError(problem)
        super().apply(workload, value)
