"""The contract of an adapter, the adapters that there are, and what they share: options, shapes, unknown names."""

import functools
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from torch import nn

from advisor.errors import TargetError
from advisor.records import TargetSpec
from advisor.workloads.loop import Loop

_NAMES_SHOWN = 5


class Adapter:
    """The knowledge about one library. Nothing imports the library before a target needs it."""

    #: Prefix of a target, as in ``timm:resnet50``; empty where the library has no names.
    prefix = ""
    #: Endings of files that are targets by themselves.
    endings: tuple[str, ...] = ()
    #: The module whose presence in ``sys.modules`` says that a target may be one of this library's objects.
    package = ""

    def load(self, name: str, spec: TargetSpec) -> Any:
        """Return the model that ``name`` names. Raises TargetError where there is none."""
        raise NotImplementedError

    def workload(self, value: Any, spec: TargetSpec) -> Any:
        """Return what ``value`` means: a Loop, or a model. None where it is not one of this library's objects."""
        return None

    def samples(self, model: nn.Module, spec: TargetSpec, *, train: bool) -> Loop | None:
        """Return made-up batches for a model of this library, with a loss if it needs one; None for other models.

        ``data`` makes a batch of a given size, where there is one ``usual_size`` only of that. ``mode`` is ``train``
        where the batches can be trained on.
        """
        return None

    def imported(self) -> ModuleType:
        """Import the library. Raises TargetError that says how to install it."""
        if importlib.util.find_spec(self.package) is None:
            raise TargetError(
                f"{self.prefix}: needs the package {self.package}, which is not installed.",
                f"Type `pip install {self.package}`, then run again.",
            )
        return importlib.import_module(self.package)


@functools.cache
def adapters() -> tuple[Adapter, ...]:
    """One of each adapter in the modules beside this one."""
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{found.name}")
    return tuple(kind() for kind in Adapter.__subclasses__())


def present() -> Iterator[Adapter]:
    """The adapters whose library is imported: no object of another one can be here."""
    return (adapter for adapter in adapters() if adapter.package in sys.modules)


def named(target: str) -> tuple[Adapter, str] | None:
    """The adapter that a target names, with the name in it: ``timm:resnet50``, or a file of an exported model."""
    prefix, separator, name = target.partition(":")
    if prefix.startswith("torchvision.models"):  # whose functions may load weights of a backbone
        prefix = "torchvision"
    adapter = next((one for one in adapters() if separator and one.prefix and one.prefix == prefix), None)
    if adapter is not None and not name:
        raise TargetError(f"{target} lacks a model's name.", "Write it after the colon, as in timm:resnet50.")
    if adapter is None:
        adapter, name = next((one for one in adapters() if Path(target).suffix in one.endings), None), target
    return None if adapter is None else (adapter, name)


def interpreted(value: Any, spec: TargetSpec) -> Any:
    """The Loop or the model that a library's object stands for. Unchanged where no adapter knows it."""
    return next((one for adapter in present() if (one := adapter.workload(value, spec)) is not None), value)


def unknown_name(name: str, library: str, known: Iterable[str]) -> TargetError:
    """The error for a name that a library does not have, with the nearest of its names."""
    names = sorted(set(known))
    near = get_close_matches(name, names, _NAMES_SHOWN) or [one for one in names if name.lower() in one][:_NAMES_SHOWN]
    some = f"It has {len(names)}, such as {', '.join(names[:_NAMES_SHOWN])}."
    return TargetError(f"{library} has no model {name!r}.", f"Did you mean {', '.join(near)}?" if near else some)


def options_of(spec: TargetSpec) -> dict[str, Any]:
    """The options of a named model, ``key=value`` after ``--``, read as YAML. Raises TargetError."""
    options = {}
    for argument in spec.arguments:
        key, separator, text = argument.removeprefix("--").partition("=")
        if not separator or not key.isidentifier():
            raise TargetError(
                f"{argument!r} is not an option of a named model.",
                "Write key=value after --, as in `perf-advisor hf:gpt2 -- n_layer=2`.",
            )
        try:
            options[key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise TargetError(f"the value of {key} is not YAML: {text!r}.", "Write a number or a word.") from error
    return options


def sample_shape(spec: TargetSpec, sizes: int, example: str) -> tuple[int, ...]:
    """One sample's shape by ``--input``, empty without it. Raises TargetError for other sizes than ``example`` has."""
    given = spec.input_shape
    if given is not None and len(given) != sizes:
        raise TargetError(
            f"--input {'x'.join(map(str, given))} has {len(given)} sizes, and a batch of this model has {sizes}.",
            f"Write all {sizes}, the batch size first, as in --input {example}.",
        )
    return given[1:] if given else ()
