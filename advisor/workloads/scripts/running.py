"""A script on its own stack (a greenlet). It is paused once in each round of its loop, and continues from there.

A paused script keeps its generators, ``with`` blocks and variables, even in a process that is forked during the
pause. Its loops iterate over a :class:`Head`, which starts again when the items end.
"""

import ast
import builtins
import contextlib
import contextvars
import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, ClassVar

import torch
from greenlet import getcurrent, greenlet

from advisor.process.meanwhile import replaced
from advisor.python.trees import functions_that, names_called
from advisor.workloads.loop import MOST_KEPT

_HEAD = "__perf_advisor_head__"
_TRAINS = frozenset({"backward", "step"})
_WRAPPED = ("iterable", "iter")  # the attributes of tqdm's and click's bars for the wrapped iterable
# Keeps paused scripts alive, so that their `finally` blocks and destructors never run.
_PAUSED: list[greenlet] = []


@dataclass(frozen=True, slots=True)
class Pause:
    """The end of a round: before a ``read`` of the loader, before an ``update``, or after a ``backward`` pass.

    ``at`` is the loader, or the user's lines that make the call; None for any lines.
    """

    event: str = ""
    at: Any = None


class Script:
    """A function that can be paused by code that it calls."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._greenlet = greenlet(lambda *_: run())
        self._greenlet.gr_context = contextvars.copy_context()
        self._outside: Any = None
        self.pid = os.getpid()  # the process that resumed it last
        self.begins: Callable[[], None] | None = None  # is called in the script when it is resumed
        _PAUSED.append(self._greenlet)

    @property
    def runs(self) -> bool:
        """Whether the current code runs inside the script."""
        return getcurrent() is self._greenlet

    def go_on(self, given: Any = None) -> bool:
        """Resume the script with this value until its next pause. Return False if it has ended."""
        if self._greenlet.dead:
            return False
        self.pid, self._greenlet.parent = os.getpid(), getcurrent()
        self._outside = _modes()
        with _modes_afterwards(self._outside):
            self._greenlet.switch(given)
        return not self._greenlet.dead

    def pause(self) -> Any:
        """Pause the script here. Return the value that it is resumed with."""
        own, parent = _modes(), self._greenlet.parent
        afterwards = None if own == self._outside else own  # modes of a `with` around the loop must stay
        assert parent is not None, "another greenlet resumed the script"
        infers = torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()
        with infers, _modes_afterwards(afterwards):
            given = parent.switch()
        if self.begins is not None:
            self.begins()
        return given


def _modes() -> tuple[Any, ...]:
    """PyTorch's modes (autocast and gradients). All code in a thread shares them, so a pause must restore them."""
    casts = tuple((one, torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in ("cpu", "cuda"))
    torch.autocast_increment_nesting()
    around = torch.autocast_decrement_nesting()  # active autocasts; at 0 PyTorch drops its cache of cast weights
    return casts, around, torch.is_grad_enabled()


@contextlib.contextmanager
def _modes_afterwards(modes: tuple[Any, ...] | None) -> Iterator[None]:
    """Set these modes at the end of a block; if None, keep the modes that are on then."""
    try:
        yield
    finally:
        casts, around, records = modes or _modes()
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        if (more := around - _modes()[1]) != 0:
            torch.clear_autocast_cache()
        for _ in range(abs(more)):
            _ = torch.autocast_increment_nesting() if more > 0 else torch.autocast_decrement_nesting()
        torch.set_grad_enabled(records)


class Head(Iterator[Any]):
    """The items of a loop. If ``goes_on`` is set, they start again at their end, and a count after ``counts_to``."""

    #: The latest head of each loop, by the loop's code and line.
    latest: ClassVar[MutableMapping[tuple[CodeType, int], "Head"]] = weakref.WeakValueDictionary()

    def __init__(self, items: Iterable[Any]) -> None:
        frame = sys._getframe(1)
        self.latest[frame.f_code, frame.f_lineno] = self
        self.goes_on = False
        self.item: Any = None  # the latest item; None once ``goes_on`` is set
        self.counts_to: int | None = None
        self._items, self._iterator = items, iter(items)
        self._is_counted = _counts(items)
        self._kept: list[Any] | None = [] if self._iterator is items else None
        self._first: int | None = None

    def __next__(self) -> Any:
        """The next item; its count by ``enumerate`` starts again too."""
        try:
            item = next(self._iterator)
        except StopIteration:
            if not self.goes_on:
                raise
            if self._kept is not None:
                self._items, self._kept = self._kept, None
            self._iterator = iter(self._items)
            item = next(self._iterator)
        if self._kept is not None and len(self._kept) < MOST_KEPT:
            self._kept.append(item)
        self.item = None if self.goes_on else item
        if self._is_counted and self._first is None:
            self._first = item[0]
        if self._first is None or not self.counts_to:
            return item
        return self._first + (item[0] - self._first) % self.counts_to, *item[1:]


def with_heads(source: bytes, file: str) -> CodeType:
    """Compile a file so that its training loops iterate over a :class:`Head`. Raises SyntaxError."""
    setattr(builtins, _HEAD, Head)
    tree = ast.parse(source, file)
    if any(name.encode() in source for name in _TRAINS):
        train = _TRAINS | functions_that(tree, lambda one: bool(names_called(one) & _TRAINS))
        for loop in [node for node in ast.walk(tree) if isinstance(node, ast.For) and names_called(node) & train]:
            head = ast.Call(ast.Name(_HEAD, ast.Load()), [loop.iter], [])
            loop.iter = ast.fix_missing_locations(ast.copy_location(head, loop))
    return compile(tree, file, "exec")


def _counts(items: Any) -> bool:
    """Whether ``enumerate`` counts these items, even inside progress bars."""
    while items is not None and type(items) is not enumerate:
        items = next((one for one in (getattr(items, name, None) for name in _WRAPPED) if one is not None), None)
    return items is not None


@contextlib.contextmanager
def patched(*wrappers: tuple[Any, str, Callable[..., Any]]) -> Iterator[None]:
    """Inside this context, call ``wrapper(function, *args)`` for each function, given by its owner and name."""
    with contextlib.ExitStack() as stack:
        for owner, name, wrapper in wrappers:
            stack.enter_context(replaced(owner, name, _wrapped(getattr(owner, name), wrapper)))
        yield


def _wrapped(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(function, *args, **kwargs)

    return call


@contextlib.contextmanager
def without_workers(loader: Any) -> Iterator[None]:
    """Inside this context, iterate a loader in this process, without workers."""
    with replaced(loader, "num_workers", 0), replaced(loader, "timeout", 0):
        yield
