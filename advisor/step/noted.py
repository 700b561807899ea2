"""Values, tensors and objects that a walk over code has reached, with their places."""

import types
import typing

import torch

from advisor.step.places import CONTENTS, Place, named

# Names by which code reaches attributes that it does not name.
ANY_ATTRIBUTE = frozenset({"__dict__", "vars", "attrgetter", "methodcaller"})
# Methods that make an object, or show it to a person.
MAKING = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__repr__", "__str__"})
# Functions by which code reaches whatever a text names.
ANYTHING = frozenset({"globals", "eval", "exec"})
# Methods that read a file.
FILE_READERS = frozenset({"read_text", "read_bytes"})
# Methods of Python's own containers that only write, as in ``note = history.append``. Others may read what they hold.
WRITERS = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "remove", "update", "write"}
)
# Names in ``logging`` that give a logger by its name.
LOGGERS = {"getLogger", "getChild"}


class Noted:
    """The values and objects that are reached.

    ``noted`` has the values and their places by names such as ``trainer.steps``; ``singles`` are the places in
    namespaces whose other places may not matter.
    """

    def __init__(self) -> None:
        self.noted: dict[str, tuple[typing.Any, Place]] = {}
        self.singles: list[Place] = []
        self.tensors: list[torch.Tensor] = []
        self.modules: list[torch.nn.Module] = []
        self.functions: dict[types.FunctionType, None] = {}
        self.arrays: list[typing.Any] = []  # and what is compared as these are: sets, the environment
        self.objects: list[typing.Any] = []  # modules, and objects of the user's own classes
        self.generators: list[typing.Any] = []
        self.clocks: list[Place] = []
        self.device_generators: list[torch.Generator] = []
        self.dicts: list[dict[typing.Any, typing.Any]] = []
        self.sequences: list[typing.Any] = []
        self.namespaces: list[dict[str, typing.Any]] = []  # of which single attributes are looked at
        self.classes: list[typing.Mapping[str, typing.Any]] = []  # their namespaces

    @property
    def places(self) -> dict[tuple[int, typing.Any], Place]:
        """The places that can hold something else later, by what they can be found by; containers as a whole too."""
        fixed = (tuple, frozenset, set)
        single = (place for _, place in self.noted.values() if not isinstance(place[0], fixed))
        whole = ((container, CONTENTS) for container in (*self.dicts, *self.sequences))
        return {named(place): place for place in (*single, *whole)}

    @property
    def spaces(self) -> list[typing.Any]:
        """The namespaces, containers and cells that code which is run can write to."""
        holders = [*(holder for holder, _ in self.places.values()), *self.namespaces]
        return list({id(holder): holder for holder in holders}.values())
