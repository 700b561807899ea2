"""Detects changes that a captured step cannot follow: its surroundings are compared before each replay.

A CUDA graph repeats kernels on the same memory. It follows what happens in that memory; it does not see a tensor that
takes the place of another, a layer that is frozen, a changed mode, hook or Python number. Numbers, tensors and objects
are looked for where the code of the loss, of the layers' ``forward``, of the user's own functions that they call and of
the functions of packages that those call reads them (``walk.py``). One that is reached in another way, such as deeper
in a package, is not noticed: keep such a number in a tensor and change that in place. Neither is what the system is
asked for, such as whether a file is there, another function in the place of a package's own, or the length of a dataset
of PyTorch's.
"""

import functools
import operator
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from types import CellType
from typing import Any

import torch

from advisor.step.capturing import HostConstants
from advisor.step.owners import is_in_package, is_installed
from advisor.step.places import CONTENTS, Place, inner_state, is_plain, value_at, value_of_cell
from advisor.step.python_state import Scripts, same_leaves
from advisor.step.walk import found_in
from advisor.step.writes import sum_on_host

REPLACED = "a tensor or an object was replaced that the model or the loss reads"
REQUIRES_GRAD = operator.attrgetter("requires_grad")
HOOKS_OF_TENSOR = operator.attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")
# Another function's may be put in their places, as notebooks do that load a changed file anew.
CODE_OF = operator.attrgetter("__code__")
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
    them before it reads them. Tensors of the host are compared by their contents, for a graph repeats the numbers that
    Python took from them; not so ``constants``, which the step reads on its device. Looking must be quick, so places
    are found once, and read by functions in C. A new Watch is due when the layers changed.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Any,
        optimizer: Any,
        constants: HostConstants,
        *,
        updates: bool = False,
        evaluates: bool = False,
        overwritten: Iterable[tuple[int, str]] = (),
    ) -> None:
        self.model = model
        self.constants = constants
        self.optimizer = optimizer
        self.updates = updates
        self.evaluates = evaluates
        walk = found_in(model, loss)
        self.modules = modules = walk.modules
        self.own = [part for module in modules for part in parts_of_module(module) if part]
        self.hooks = [hooks for module in modules for hooks in hooks_of(module)] + HOOKS_OF_ALL
        self.attributes = [vars(module) for module in modules if "training" in vars(module)]
        is_mode, is_other = (functools.partial(is_so, "training") for is_so in (operator.eq, operator.ne))
        self.scripts, self.modes_of_scripts = Scripts(modules, is_other), Scripts(modules, is_mode)
        self.flags = flag_readers()
        found = walk.places
        whole = [place for place, key in found.values() if key == CONTENTS]
        self.ordered = [one for one in whole if isinstance(one, dict) and all(map(is_plain, one))]
        self.containers = [*whole, *walk.classes, *walk.namespaces]
        places = [found[name] for name in found.keys() - set(overwritten) if name[1] != CONTENTS]
        self.numbers_in = Places([place for place in places if is_plain(value_at(*place))])
        self.objects_in = Places([place for place in places if not is_plain(value_at(*place))])
        self.written_to = [*walk.arrays, *walk.generators]
        self.unfollowed, self.clocks = walk.problem, walk.clocks
        self.objects, self.tensors = walk.objects, walk.tensors
        self.own_functions = [one for one in walk.functions if not is_in_package(one.__code__.co_filename)]
        self.functions, self.spaces = list(walk.functions), walk.spaces
        # The changes in words, the state that tells of each, and the comparison of two such states.
        self.checks: tuple[tuple[str, Callable[[], Any], Callable[[Any, Any], bool]], ...] = (
            ("layers, parameters or buffers of the model changed", self.read_objects, same_objects),
            ("the memory of a tensor changed", self.read_addresses, operator.eq),
            ("other parameters are trained", lambda: list(map(REQUIRES_GRAD, self.parameters)), operator.eq),
            (
                "the hooks of the layers changed",
                lambda: sum(map(len, self.hooks)) + count_hooks(self.parameters),
                operator.eq,
            ),
            ("a number changed that the model or the loss reads", self.numbers_in.read, same_numbers),
            (
                "a list, a dictionary or an object's attributes grew or shrank that the model or the loss uses",
                lambda: [*map(len, self.containers), *map(list, self.ordered)],
                operator.eq,
            ),
            (REPLACED, self.objects_in.read, same_objects),
            (
                "an array or a random generator was used that the model or the loss reads",
                lambda: list(map(inner_state, self.written_to)),
                operator.eq,
            ),
            (
                "a tensor of the host was written to that the model or the loss reads",
                lambda: list(map(sum_on_host, self.on_host)),
                operator.eq,
            ),
            ("a global flag of PyTorch changed", lambda: [flag() for flag in self.flags], operator.eq),
            ("the optimizer's parameters or state changed", self.read_optimizer, same_objects),
            ("other layers are in training mode", self.read_modes, operator.eq),
            (
                "an object has another class, or a function other code",
                lambda: [*map(type, self.objects), *map(CODE_OF, self.own_functions)],
                operator.eq,
            ),
            (
                "a layer has another forward",
                lambda: list(map(dict.get, self.attributes, repeat("forward"))),
                operator.eq,
            ),
        )
        if self.scripts.places:
            self.checks += (("a module of TorchScript changed", self.scripts.read, same_leaves),)
        self.remember()

    def remember(self) -> None:
        """Take the present state as the one that later ones are compared with."""
        parts = [*self.read_objects(), *torch.utils._pytree.tree_leaves(self.scripts.read())]
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        self.placed = [tensor for tensor in (*tensors, *self.tensors) if has_address(tensor)]
        self.parameters = [tensor for tensor in tensors if isinstance(tensor, torch.nn.Parameter)]
        self.on_host = self.constants.not_held(self.placed)
        self.remembered = {words: read() for words, read, _ in self.checks}

    def changed(self) -> str:
        """The differences, in words; empty when there are none."""
        for words, read, are_same in self.checks:
            if not are_same(read(), self.remembered[words]):
                return words
        return ""

    def replaced(self) -> list[Place]:
        """The places with another tensor or object."""
        pairs = zip(self.objects_in.places, self.objects_in.read(), self.remembered[REPLACED], strict=True)
        return [place for place, now, before in pairs if now is not before]

    def read_objects(self) -> list[Any]:
        """The layers, parameters and buffers of all modules."""
        return list(chain.from_iterable(map(dict.values, self.own)))

    def read_addresses(self) -> list[int]:
        """Where the tensors lie, which ``parameter.data = other`` changes."""
        return list(map(torch.Tensor.data_ptr, self.placed))

    def read_modes(self) -> Any:
        """The modes of the layers; of a step that puts a model into evaluation mode itself, only that it does."""
        evaluated = self.evaluates and self.model.training
        modes = list(map(dict.get, self.attributes, repeat("training")))
        return evaluated or (modes + self.modes_of_scripts.read() if self.modes_of_scripts.places else modes)

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
    """Places whose values are read quickly: names in namespaces and cells of closures by functions in C."""

    def __init__(self, places: list[Place]) -> None:
        named = [place for place in places if isinstance(place[0], dict)]
        cells = [place for place in places if type(place[0]) is CellType]
        self.others = [place for place in places if not isinstance(place[0], dict) and type(place[0]) is not CellType]
        self.places = [*named, *cells, *self.others]
        self.holders, self.keys = [holder for holder, _ in named], [key for _, key in named]
        self.cells = [holder for holder, _ in cells]

    def read(self) -> list[Any]:
        """The present values."""
        others = [value_at(*place) for place in self.others]
        return [*map(dict.get, self.holders, self.keys), *map(value_of_cell, self.cells), *others]


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
            hooks += filter(None, HOOKS_OF_TENSOR(parameter) if parameter is not None else ())
        for hook in chain.from_iterable(map(dict.values, hooks)):
            if not is_installed(hook):
                name = getattr(hook, "__name__", type(hook).__name__)
                return f"a {type(module).__name__} has the hook {name}, which a graph would leave out"
    return ""


def count_hooks(tensors: Iterable[torch.Tensor]) -> int:
    """The number of hooks on the gradients of tensors."""
    return sum(map(len, filter(None, chain.from_iterable(map(HOOKS_OF_TENSOR, tensors)))))


def hooks_of(module: torch.nn.Module) -> list[Any]:
    """A layer's own hooks, by their numbers."""
    return [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks]
