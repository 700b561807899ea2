"""Notices hooks that a loop adds to layers, or takes from them, after code was made for the layers without."""

import typing
import warnings
from itertools import chain

import torch

from advisor.step.owners import is_installed, is_of_library

KINDS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class LateHooks:
    """Tells whether the hooks of a module's layers are others than at its first call, from which on code was made.

    PyTorch's compiler does not look for hooks that come later, and a trace has none. Hooks of packages beside PyTorch
    do not count: some of them come and go with every forward pass. ``of_inner``: the module's own hooks do not count
    either, for the compiler does look at those. ``is_block``: code is shared with modules of its class, so the user's
    hooks always make it another.
    """

    def __init__(self, module: torch.nn.Module, *, of_inner: bool = False, is_block: bool = False) -> None:
        self.module, self._of_inner, self._is_block = module, of_inner, is_block
        self._hooks: list[typing.Any] = []
        self._numbers: list[int] = []
        self._first: list[int] | None = None
        self._differ = self._told = False

    @property
    def differ(self) -> bool:
        """Whether they differ now; a warning says so once."""
        if torch.compiler.is_compiling():
            return False
        if self._first is None:
            parts = [part for part in self.module.modules() if part is not self.module or not self._of_inner]
            self._hooks = [vars(part)[kind] for part in parts for kind in KINDS if kind in vars(part)]
            self._first = self._counted(with_users=not self._is_block)
        numbers = list(chain.from_iterable(self._hooks))
        if numbers != self._numbers:
            self._numbers, self._differ = numbers, self._counted() != self._first
        if self._differ and not self._told:
            self._told = True
            warnings.warn(
                f"this {type(self.module).__name__} runs uncompiled while its layers have other hooks than the "
                "code that was compiled for it",
                stacklevel=4,
            )
        return self._differ

    def _counted(self, *, with_users: bool = True) -> list[int]:
        every = [one for hooks in self._hooks for one in hooks.items() if counts(one[1])]
        return [number for number, hook in every if with_users or is_installed(hook)]


def counts(hook: typing.Any) -> bool:
    """Whether a hook is the user's own, or PyTorch's."""
    return not is_installed(hook) or is_of_library(getattr(hook, "func", hook))


def unless_hooks_differ(
    module: torch.nn.Module,
    compiled: typing.Callable[..., typing.Any],
    plain: typing.Callable[..., typing.Any],
    *,
    of_inner: bool = False,
    is_block: bool = False,
) -> typing.Callable[..., typing.Any]:
    """The compiled call; while the module's hooks, or those of what is inside it, differ the plain one."""
    hooks = LateHooks(module, of_inner=of_inner, is_block=is_block)

    def call(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        return plain(*args, **kwargs) if hooks.differ else compiled(*args, **kwargs)

    return call
