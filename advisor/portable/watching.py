"""Detects changes that a captured step cannot follow: its surroundings are compared before each replay.

A CUDA graph repeats kernels on the same memory. It follows what happens in that memory; it does not see a tensor that
takes the place of another, a layer that is frozen, a changed mode, hook or Python number. Numbers are looked for in the
attributes, closures and global names that the loss and the layers' ``forward`` read, and in dictionaries, lists,
namespaces, dataclasses and other objects that these hold. A number that is reached in another way, such as through a
function that the loss calls, is not noticed: keep it in a tensor and change that in place. Tensors are looked for in
the same places: one that takes the place of another is noticed. So is a container that grows.
"""

import dataclasses
import dis
import functools
import operator
import pathlib
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any

import torch

from advisor.portable.python_state import CONTAINERS, OF_TORCH, holder_of

# A namespace, or the cell of a closure, and the name of a value in it.
Place = tuple[Any, str]
# The name of a place that is a container as a whole.
CONTENTS = "its contents"
REPLACED = "a tensor was replaced that the model or the loss reads"
PLAIN_KINDS = (bool, int, float, complex, str, bytes, type(None))
# Containers and objects inside one another that are looked into, and things in each of them. Counts: more are data.
DEEPEST = 3
MOST_LOOKED_INTO = 64
# Where installed code lies.
PACKAGES = ("site-packages", "dist-packages", str(pathlib.Path(torch.__file__).parent))
REQUIRES_GRAD = operator.attrgetter("requires_grad")
# PyTorch's global flags that choose kernels, by the names of the quick functions behind ``torch.backends``.
FLAG_NAMES = (
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "get_default_dtype",
    "is_autocast_enabled",
    "_get_deterministic_algorithms",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
)
# Those of the precision of float32, which refuse to answer where a script has used the functions that came after them.
PRECISION_NAMES = ("_get_cudnn_allow_tf32", "_get_float32_matmul_precision")
# What these functions are asked for, from PyTorch 2.9 on.
PRECISIONS = (("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))
# Hooks of all layers that there are, by their numbers.
HOOKS_OF_ALL: list[Any] = [
    getattr(torch.nn.modules.module, f"_global_{kind}_hooks")
    for kind in ("forward", "forward_pre", "backward", "backward_pre")
]


class Watch:
    """Tells what changed in a model, a loss and an optimizer since ``remember()``.

    ``updates`` says that the optimizer's step is captured too, and ``evaluates`` that the step itself puts the model
    into evaluation mode. The places in ``overwritten``, as ``named()`` has them, are not looked at: the step writes
    them before it reads them. Looking must be quick, so places are found once, and read by functions in C. A new Watch
    is due when the layers changed.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Any,
        optimizer: Any,
        *,
        updates: bool = False,
        evaluates: bool = False,
        overwritten: Iterable[tuple[int, str]] = (),
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.updates = updates
        self.evaluates = evaluates
        roots = [model, loss] if isinstance(loss, torch.nn.Module) else [model]
        self.modules = modules = list(dict.fromkeys(module for root in roots for module in root.modules()))
        self.own = [part for module in modules for part in parts_of_module(module) if part]
        self.hooks = [hooks for module in modules for hooks in hooks_of(module)] + HOOKS_OF_ALL
        self.attributes = [vars(module) for module in modules if "training" in vars(module)]
        self.flags = flag_readers()
        found = {named(place): place for place in places_of(modules, loss)}
        self.containers = [place for place, key in found.values() if key == CONTENTS]
        places = [found[name] for name in found.keys() - set(overwritten) if name[1] != CONTENTS]
        with_tensors = [place for place in places if holds_tensor(value_at(*place))]
        self.numbers_in = Places([place for place in places if not holds_tensor(value_at(*place))])
        self.tensors_in = Places(with_tensors)
        self.remember()
        self.checks = (
            ("layers, parameters or buffers of the model changed", self.has_other_objects),
            ("the memory of the parameters changed", self.has_moved),
            ("other parameters are trained", self.trains_others),
            ("the hooks of the layers changed", self.has_other_hooks),
            ("a number changed that the model or the loss reads", self.has_other_numbers),
            ("a list or a dictionary changed that the model or the loss uses", self.has_other_contents),
            (REPLACED, self.has_other_tensors),
            ("a global flag of PyTorch changed", self.has_other_flags),
            ("the optimizer's parameters or state changed", self.updates_others),
            ("other layers are in training mode", self.has_other_modes),
        )

    def remember(self) -> None:
        """Take the present state as the one that later ones are compared with."""
        self.objects = self.read_objects()
        tensors = [part for part in self.objects if isinstance(part, torch.Tensor)]
        self.placed = [tensor for tensor in tensors if has_address(tensor)]
        self.addresses = list(map(torch.Tensor.data_ptr, self.placed))
        self.parameters = [tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter)]
        self.trained = list(map(REQUIRES_GRAD, self.parameters))
        self.evaluated = self.is_evaluated()
        self.modes = list(map(dict.get, self.attributes, repeat("training")))
        self.hook_count = sum(map(len, self.hooks))
        self.numbers = self.numbers_in.read()
        self.tensors = self.tensors_in.read()
        self.contents = list(map(seen_in, self.containers))
        self.flag_values = self.read_flags()
        self.optimized = self.read_optimizer()

    def changed(self) -> str:
        """The differences, in words; empty when there are none."""
        for words, differs in self.checks:
            if differs():
                return words
        return ""

    def has_other_objects(self) -> bool:
        """Whether a layer, a parameter or a buffer took the place of another."""
        return not same_objects(self.read_objects(), self.objects)

    def has_moved(self) -> bool:
        """Whether a tensor lies elsewhere, as after ``parameter.data = other``."""
        return list(map(torch.Tensor.data_ptr, self.placed)) != self.addresses

    def trains_others(self) -> bool:
        """Whether parameters were frozen or unfrozen."""
        return list(map(REQUIRES_GRAD, self.parameters)) != self.trained

    def has_other_hooks(self) -> bool:
        """Whether hooks of layers came or went."""
        return sum(map(len, self.hooks)) != self.hook_count

    def has_other_numbers(self) -> bool:
        """Whether a plain value that the model or the loss reads is another."""
        return not same_numbers(self.numbers_in.read(), self.numbers)

    def has_other_contents(self) -> bool:
        """Whether a container has another size, or other plain values in it."""
        return not all(map(same_numbers, map(seen_in, self.containers), self.contents))

    def has_other_tensors(self) -> bool:
        """Whether another tensor is where the model or the loss reads one."""
        return not same_objects(self.tensors_in.read(), self.tensors)

    def replaced(self) -> list[Place]:
        """The places with another tensor."""
        now = self.tensors_in.read()
        pairs = zip(self.tensors_in.places, map(operator.is_, now, self.tensors), strict=True)
        return [place for place, is_same in pairs if not is_same]

    def has_other_flags(self) -> bool:
        """Whether a global flag of PyTorch is another."""
        return self.read_flags() != self.flag_values

    def updates_others(self) -> bool:
        """Whether the optimizer has other parameters or, in a captured update, another state."""
        return not same_objects(self.read_optimizer(), self.optimized)

    def has_other_modes(self) -> bool:
        """Whether layers changed between training and evaluation; a step that evaluates a training model sets them."""
        if self.is_evaluated() != self.evaluated:
            return True
        return not self.evaluated and list(map(dict.get, self.attributes, repeat("training"))) != self.modes

    def is_evaluated(self) -> bool:
        """Whether the step puts all layers into evaluation mode."""
        return self.evaluates and self.model.training

    def read_objects(self) -> list[Any]:
        """The layers, parameters and buffers of all modules."""
        return list(chain.from_iterable(map(dict.values, self.own)))

    def read_flags(self) -> list[Any]:
        """PyTorch's global flags."""
        return [flag() for flag in self.flags]

    def read_optimizer(self) -> list[Any]:
        """The parameters that are cleared and updated; of a captured update also its groups, state and ``step``."""
        optimizer = self.optimizer
        if optimizer is None:
            return []
        groups = optimizer.param_groups
        parameters = chain.from_iterable([group["params"] for group in groups])
        if not self.updates:
            return list(parameters)
        state = chain.from_iterable(map(dict.values, optimizer.state.values()))
        # A function of the optimizer's own takes the place of ``step``, as schedulers do.
        return [vars(optimizer).get("step"), groups, optimizer.state, *groups, *parameters, *state]


class Places:
    """Namespaces and cells of closures, each with a name, whose values are read quickly."""

    def __init__(self, places: list[Place]) -> None:
        named = [(place, key) for place, key in places if isinstance(place, dict)]
        self.places = [*named, *((place, key) for place, key in places if not isinstance(place, dict))]
        self.holders, self.keys = [place for place, _ in named], [key for _, key in named]
        self.cells = [place for place, _ in places if not isinstance(place, dict)]

    def read(self) -> list[Any]:
        """The present values."""
        return [*map(dict.get, self.holders, self.keys), *map(value_of_cell, self.cells)]


def flag_readers() -> list[Callable[[], Any]]:
    """Functions that return PyTorch's global flags that choose kernels."""
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    names = FLAG_NAMES if newer else FLAG_NAMES + PRECISION_NAMES
    readers = [getattr(torch._C, name) for name in names if hasattr(torch._C, name)]
    return [*readers, *(functools.partial(newer, *asked) for asked in PRECISIONS if newer)]


def parts_of_module(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    """A module's children, parameters and buffers."""
    return tuple(part for part in (module._modules, module._parameters, module._buffers) if isinstance(part, dict))


def has_address(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory of its own and is no wrapper of other tensors."""
    try:
        return tensor.data_ptr() is not None
    except RuntimeError:
        return False


def named(place: Place) -> tuple[int, str]:
    """A place as what it can be found by: namespaces themselves would be compared by what is in them."""
    return id(place[0]), place[1]


def value_at(place: Any, key: str) -> Any:
    """The value in a namespace or a cell."""
    return dict.get(place, key) if isinstance(place, dict) else value_of_cell(place)


def value_of_cell(cell: Any) -> Any:
    """The value in the cell of a closure."""
    try:
        return cell.cell_contents
    except ValueError:  # deleted in the function that it is a variable of
        return None


def same_objects(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists hold the same objects; a comparison of tensors would compute."""
    return len(one) == len(other) and all(map(operator.is_, one, other))


def same_numbers(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists hold equal plain values."""
    return same_objects(one, other) or (
        len(one) == len(other)
        and all(a is b or (type(a) is type(b) and is_plain(a) and a == b) for a, b in zip(one, other, strict=True))
    )


def foreign_hook(modules: list[torch.nn.Module]) -> str:
    """A sentence on a hook of the user's own, which a graph would leave out; empty where there is none."""
    for module in modules:
        hooks = [*hooks_of(module), *HOOKS_OF_ALL]
        for parameter in module._parameters.values():
            hooks += [
                getattr(parameter, name, None) or {} for name in ("_backward_hooks", "_post_accumulate_grad_hooks")
            ]
        for hook in chain.from_iterable(map(dict.values, hooks)):
            if not is_installed(hook):
                name = getattr(hook, "__name__", type(hook).__name__)
                return f"a {type(module).__name__} has the hook {name}, which a graph would leave out"
    return ""


def hooks_of(module: torch.nn.Module) -> list[Any]:
    """A layer's own hooks, by their numbers."""
    return [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks]


def is_installed(call: Any) -> bool:
    """Whether the code of a function or of an object that is called belongs to an installed package."""
    function = getattr(call, "__func__", call)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is None or any(place in code.co_filename for place in PACKAGES)


def seen_in(container: Any) -> list[Any]:
    """The size of a container and, of a short list or queue, its plain values; of a queue its tensors as well."""
    found = [len(container)]
    if not isinstance(container, (list, deque)) or len(container) > MOST_LOOKED_INTO:
        return found
    return found + [one for one in container if is_plain(one) or isinstance(container, deque)]


def holds_tensor(value: Any) -> bool:
    """Whether a value is a tensor, or a tuple or a list with one in it."""
    if type(value) in (tuple, list):
        return any(isinstance(part, torch.Tensor) for part in value)
    return isinstance(value, torch.Tensor)


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a text or the like, or a tuple of such."""
    return type(value) in PLAIN_KINDS or (type(value) is tuple and all(map(is_plain, value)))


def places_of(modules: list[torch.nn.Module], loss: Any) -> Iterator[Place]:
    """The plain values and tensors that the forward passes and the loss read, as pairs of a place and a name.

    A place is a namespace, or the cell of a closure.
    """
    for module in modules:
        kind: Any = type(module)
        of_torch = kind.__module__.startswith("torch.")
        read = names_read(kind, "forward")
        for name in read & vars(module).keys() - OF_TORCH:
            value = vars(module)[name]
            if type(value) is float or not of_torch:
                yield from places_in(vars(module), name, value, read)
    for kind in {type(module) for module in modules if not type(module).__module__.startswith("torch.")}:
        yield from places_of_function(kind.forward)
    if not isinstance(loss, torch.nn.Module):
        yield from places_of_call(loss)


def places_of_call(call: Any) -> Iterator[Place]:
    """The plain values that a function, a method, a partial or an object reads when it is called."""
    if isinstance(call, functools.partial):
        yield from places_of_call(call.func)
    elif isinstance(call, types.MethodType):
        yield from places_of_function(call.__func__)
        yield from places_of_object(call.__self__, call.__name__)
    elif isinstance(call, types.FunctionType):
        yield from places_of_function(call)
    elif callable(call):
        yield from places_of_function(type(call).__call__)
        yield from places_of_object(call, "__call__")


def places_of_object(owner: Any, method: str) -> Iterator[Place]:
    """The plain values that a method reads in its object."""
    own, kind = getattr(owner, "__dict__", {}), type(owner)  # type: dict[str, Any], Any
    read = names_read(kind, method)
    for name in read & own.keys():
        yield from places_in(own, name, own[name], read)


def places_of_function(function: Any) -> Iterator[Place]:
    """The plain values that a function reads in its closure and among its module's global names."""
    if not isinstance(function, types.FunctionType):
        return
    read = frozenset(name for code in codes_of(function.__code__) for name in names_in(code))
    for cell in function.__closure__ or ():
        yield from places_in(cell, "", value_of_cell(cell), read)
    for name in {name for code in codes_of(function.__code__) for name in global_names(code)}:
        if name in function.__globals__:
            yield from places_in(function.__globals__, name, function.__globals__[name], read)


def places_in(holder: Any, name: str, value: Any, read: frozenset[str], depth: int = DEEPEST) -> Iterator[Place]:
    """The place of a plain value or a tensor, or the places in a container or an object.

    ``read`` are the names that the code around it reads: of an object of any class only those of its attributes count
    that this code or its methods read. A container itself is a place too, named ``CONTENTS``.
    """
    if is_plain(value) or holds_tensor(value):
        yield holder, name
    if isinstance(value, (dict, list, set, deque)):
        yield value, CONTENTS
    inside = namespace_of(value, read) if depth else {}
    for key, part in list(inside.items())[:MOST_LOOKED_INTO]:
        yield from places_in(value if isinstance(value, dict) else vars(value), key, part, read, depth - 1)


def namespace_of(value: Any, read: frozenset[str]) -> dict[str, Any]:
    """The items of a dictionary, or the attributes of an object that count; empty for anything else."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, types.SimpleNamespace) or is_options(value):
        return dict(vars(value))
    own, kind = holder_of(value), type(value)  # type: Any, Any
    if own is None or isinstance(value, CONTAINERS):
        return {}
    names = read.union(*(names_read(kind, name) for name in read if hasattr(kind, name)))
    return {name: part for name, part in own.items() if name in names}


def is_options(value: Any) -> bool:
    """Whether an object is one of options: a dataclass, or what ``argparse`` makes."""
    of_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return hasattr(value, "__dict__") and (of_dataclass or type(value).__name__ == "Namespace")


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


def global_names(code: types.CodeType) -> Iterable[str]:
    """The global names that code reads."""
    return (one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL")


def names_in(code: types.CodeType) -> set[str]:
    """The names that code reads, also by ``getattr``; attributes that it only writes are left out."""
    used = [one.argval for one in dis.get_instructions(code) if one.opname not in ("STORE_ATTR", "DELETE_ATTR")]
    asked = [one for one in code.co_consts if isinstance(one, str)] if "getattr" in code.co_names else []
    return {name for name in used if isinstance(name, str)} & set(code.co_names) | set(asked)


@functools.cache
def names_read(kind: Any, method: str) -> frozenset[str]:
    """The names that a method of a class reads, in itself and in the class's other methods that it may call."""
    found: set[str] = set()
    names = {method, "__call__"}
    while names:
        name = names.pop()
        found_in = [vars(base)[name] for base in kind.__mro__ if name in vars(base) and base is not torch.nn.Module]
        for function in [getattr(one, "fget", one) for one in found_in]:  # also of a property
            if isinstance(function, types.FunctionType):
                read = {name for code in codes_of(function.__code__) for name in names_in(code)}
                names |= read - found
                found |= read
    return frozenset(found)
