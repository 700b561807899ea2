"""The base class of adapters, the list of adapters, and their common functions: options, shapes, unknown names."""

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
    """The support for one library. The library is not imported before a target needs it."""

    #: The prefix of a target, as in ``timm:resnet50``; empty if the library has no model names.
    prefix = ""
    #: The suffixes of files that are targets by themselves.
    endings: tuple[str, ...] = ()
    #: The module of the library. Only if it is in ``sys.modules`` can a target be one of the library's objects.
    package = ""

    def load(self, name: str, spec: TargetSpec) -> Any:
        """Return the model ``name``. Raises TargetError if there is no such model."""
        raise NotImplementedError

    def workload(self, value: Any, spec: TargetSpec) -> Any:
        """Return the Loop or model in ``value``; None if ``value`` is not one of this library's objects."""
        return None

    def samples(self, model: nn.Module, spec: TargetSpec, *, train: bool) -> Loop | None:
        """Return made-up batches for a model of this library, with a loss if it needs one; None for other models.

        ``data`` makes a batch of a given size; if ``usual_size`` is set, only a batch of that size. ``mode`` is
        ``train`` if the model can be trained on the batches.
        """
        return None

    def imported(self) -> ModuleType:
        """Import the library. Raises TargetError with its install command if it is not installed."""
        if importlib.util.find_spec(self.package) is None:
            raise TargetError(
                f"{self.prefix}: needs the package {self.package}, which is not installed.",
                f"Type `pip install {self.package}`, then run again.",
            )
        return importlib.import_module(self.package)


@functools.cache
def adapters() -> tuple[Adapter, ...]:
    """One instance of each adapter class in this folder."""
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{found.name}")
    return tuple(kind() for kind in Adapter.__subclasses__())


def present() -> Iterator[Adapter]:
    """The adapters whose library is imported. Objects of the other libraries cannot exist."""
    return (adapter for adapter in adapters() if adapter.package in sys.modules)


def named(target: str) -> tuple[Adapter, str] | None:
    """The adapter for a target such as ``timm:resnet50`` or an exported model's file, and the model's name."""
    prefix, separator, name = target.partition(":")
    if prefix.startswith("torchvision.models"):  # called directly, its functions may download a backbone's weights
        prefix = "torchvision"
    adapter = next((one for one in adapters() if separator and one.prefix and one.prefix == prefix), None)
    if adapter is not None and not name:
        raise TargetError(f"{target} lacks a model's name.", "Write it after the colon, as in timm:resnet50.")
    if adapter is None:
        adapter, name = next((one for one in adapters() if Path(target).suffix in one.endings), None), target
    return None if adapter is None else (adapter, name)


def interpreted(value: Any, spec: TargetSpec) -> Any:
    """The Loop or model in a library's object; the value itself if no adapter knows it."""
    return next((one for adapter in present() if (one := adapter.workload(value, spec)) is not None), value)


def unknown_name(name: str, library: str, known: Iterable[str]) -> TargetError:
    """The error for a name that a library does not have. Its hint lists the most similar names."""
    names = sorted(set(known))
    near = get_close_matches(name, names, _NAMES_SHOWN) or [one for one in names if name.lower() in one][:_NAMES_SHOWN]
    some = f"It has {len(names)}, such as {', '.join(names[:_NAMES_SHOWN])}."
    return TargetError(f"{library} has no model {name!r}.", f"Did you mean {', '.join(near)}?" if near else some)


def options_of(spec: TargetSpec) -> dict[str, Any]:
    """The options of a named model: ``key=value`` after ``--``, with YAML values. Raises TargetError."""
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
    """One sample's shape from ``--input``; empty without it. Raises TargetError if it has not ``sizes`` sizes."""
    given = spec.input_shape
    if given is not None and len(given) != sizes:
        raise TargetError(
            f"--input {'x'.join(map(str, given))} has {len(given)} sizes, but a batch of this model has {sizes}.",
            f"Write all {sizes} sizes, the batch size first, as in --input {example}.",
        )
    return given[1:] if given else ()
