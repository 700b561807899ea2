"""The contract of an adapter, and the shared parts: made-up batches, and errors for unknown names."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import yaml
from torch import nn

from advisor.errors import TargetError
from advisor.records import Place, TargetSpec
from advisor.workloads.workload import Workload

_NAMES_SHOWN = 5


@dataclass(slots=True)
class Adapted(Workload):
    """A workload that an adapter made, with what the user did not say.

    ``notes`` say what was assumed on the user's behalf. ``usual_size`` is the batch size by default. ``samples`` are
    those of a step whose batch does not show them, such as the index at which its samples begin. ``hint`` says what to
    do when the model does not take the batch; empty where the user gave the batch. ``trainer`` is the library whose
    trainer runs the loop, empty without one. ``places`` are those of the user's files where settings can be written.
    ``whole_round`` is a step that lets a script go on for a round of its loop; its ``batches`` feed it.
    """

    notes: list[str] = field(default_factory=list)
    usual_size: int | None = None
    samples: int | None = None
    hint: str = ""
    trainer: str = ""
    places: tuple[Place, ...] = ()
    whole_round: Any = None


class Adapter:
    """The knowledge about one library. Nothing imports the library before a target needs it."""

    #: Prefix of a target, as in ``timm:resnet50``; empty where the library has no names.
    prefix = ""
    #: The module whose presence in ``sys.modules`` says that a target may be one of this library's objects.
    package = ""

    def load(self, name: str, spec: TargetSpec) -> Any:
        """Return the model that ``name`` names. Raises TargetError where there is none."""
        raise NotImplementedError

    def workload(self, value: Any, spec: TargetSpec) -> Any:
        """Return what ``value`` means: a Workload, or a model. None where it is not one of this library's objects."""
        return None

    def samples(self, model: nn.Module, spec: TargetSpec, *, train: bool) -> Adapted | None:
        """Return made-up batches for a model of this library, with a loss if it needs one; None for other models.

        ``data`` makes a batch of a given size, where there is one ``usual_size`` only of that. ``mode`` is ``train``
        where the batches can be trained on.
        """
        return None

    def imported(self, submodule: str = "") -> ModuleType:
        """Import the library. Raises TargetError that says how to install it."""
        if importlib.util.find_spec(self.package) is None:
            raise TargetError(
                f"{self.prefix}: needs the package {self.package}, which is not installed.",
                f"Type `pip install {self.package}`, then run again.",
            )
        return importlib.import_module(f"{self.package}{submodule}")


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


def check_input(spec: TargetSpec, sizes: int, example: str) -> None:
    """Raise TargetError where ``--input`` has another number of sizes than a batch, such as ``example``, has."""
    given = spec.input_shape
    if given is not None and len(given) != sizes:
        raise TargetError(
            f"--input {'x'.join(map(str, given))} has {len(given)} sizes, and a batch of this model has {sizes}.",
            f"Write all {sizes}, the batch size first, as in --input {example}.",
        )
