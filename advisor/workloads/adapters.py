"""The adapters of other libraries applied to a target: to a name, an object, or a model without data."""

import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from advisor.errors import TargetError
from advisor.files.paths import EXPORTED
from advisor.records import Mode, TargetSpec
from advisor.workloads import guess, hubs
from advisor.workloads.hubs.contract import Adapted, Adapter
from advisor.workloads.hubs.exported import Exported

for found in pkgutil.iter_modules(hubs.__path__):
    import_module(f"{hubs.__name__}.{found.name}")
ADAPTERS = tuple(kind() for kind in Adapter.__subclasses__())


def named(target: str) -> tuple[Adapter, str] | None:
    """The adapter that a target names, with the name in it: ``timm:resnet50``, or a file of an exported model."""
    prefix, separator, name = target.partition(":")
    if prefix.startswith("torchvision.models"):  # whose functions may load weights of a backbone
        prefix = "torchvision"
    adapter = next((one for one in ADAPTERS if separator and one.prefix and one.prefix == prefix), None)
    if adapter is not None:
        if not name:
            raise TargetError(f"{target} lacks a model's name.", "Write it after the colon, as in timm:resnet50.")
        return adapter, name
    if Path(target).suffix in EXPORTED:
        return Exported(), target
    return None


def interpreted(value: Any, spec: TargetSpec) -> Any:
    """The meaning of a library's object: a Workload or a model. Unchanged where no adapter knows it."""
    found = (adapter.workload(value, spec) for adapter in _present())
    return next((one for one in found if one is not None), value)


def with_samples(workload: Adapted, spec: TargetSpec) -> Adapted:
    """A workload without data, with made-up batches of a size that fits the machine. Raises TargetError."""
    train = (spec.mode or workload.mode) != Mode.INFER
    made = (adapter.samples(workload.model, spec, train=train) for adapter in _present())
    samples = next((one for one in made if one is not None), None) or guess.samples(workload.model, spec)
    has_more = workload.loss is not None or workload.optimizer is not None
    mode = Mode(spec.mode or workload.mode or samples.mode or (Mode.TRAIN if has_more else Mode.INFER))
    size, note = guess.batch_size_for(workload.model, samples, mode, spec)
    return replace(
        workload,
        data=samples.data,
        loss=samples.loss if workload.loss is None else workload.loss,
        optimizer=samples.optimizer if workload.optimizer is None else workload.optimizer,
        mode=mode.value,
        notes=[*workload.notes, *samples.notes, *filter(None, (note,))],
        usual_size=size,
        hint=guess.hint_for(workload.model, samples.data, size),
    )


def _present() -> Iterator[Adapter]:
    """The adapters whose library is imported: no object of another one can be here."""
    return (adapter for adapter in ADAPTERS if adapter.package in sys.modules)
