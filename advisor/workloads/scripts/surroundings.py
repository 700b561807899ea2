"""The surroundings of a loop's body that runs by itself: names, PyTorch's contexts, and the iterators that it reads."""

import ast
import contextlib
import fcntl
import gc
import os
import struct
import termios
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FrameType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from advisor.process.meanwhile import replaced
from advisor.python.positions import Iterators, value_of
from advisor.step.loader import length_of

# Contexts that do not change what a step computes: entering one at each step would cost time, or write files.
_NOT_STATE = ("torch.profiler", "torch.autograd.profiler", "torch.utils.tensorboard", "torch.cuda.nvtx")


@dataclass(frozen=True, slots=True)
class Context:
    """An expression after ``with``, and the names of its frame."""

    code: CodeType
    names: dict[str, Any]


def contexts_of(blocks: Iterable[ast.With], names: dict[str, Any], file: str) -> Iterator[Context]:
    """The contexts of some ``with`` blocks that set PyTorch's state, such as autocast."""
    for item in (item for block in blocks for item in block.items):
        expression = item.context_expr
        if isinstance(expression, ast.Call):
            module = getattr(value_of(expression.func, names), "__module__", None)
        else:
            module = type(value_of(expression, names)).__module__
        if isinstance(module, str) and module.split(".")[0] == "torch" and not module.startswith(_NOT_STATE):
            yield Context(compile(ast.Expression(expression), file, "eval"), names)


@contextlib.contextmanager
def entered(contexts: Iterable[Context]) -> Iterator[None]:
    """Run inside some contexts, the first one outermost."""
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(eval(context.code, context.names))  # noqa: S307 - it is the user's own expression
        yield


class Names(dict[str, Any]):
    """The names of a function's frame that has ended, as the globals of code that runs in its place.

    A variable that inner functions share is read and written where these have it, and a name of the module is looked up
    each time: both may change while the body runs.
    """

    def __init__(self, frame: FrameType) -> None:
        self._shared = _cells(frame)
        self._module: Mapping[str, Any] = frame.f_globals
        super().__init__({name: value for name, value in frame.f_locals.items() if name not in self._shared})

    def __missing__(self, name: str) -> Any:
        """The value of a shared variable or of a name of the module. Raises KeyError where it has none."""
        if name not in self._shared:
            return self._module[name]
        try:
            return self._shared[name].cell_contents
        except ValueError:  # not assigned yet
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        """Assign to a name, as a statement of the function would."""
        if name in self._shared:
            self._shared[name].cell_contents = value
        else:
            super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        """Unbind a name."""
        if name in self._shared:
            del self._shared[name].cell_contents
        else:
            super().__delitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or ``default``."""
        try:
            return self[name]
        except KeyError:
            return default


def _cells(frame: FrameType) -> dict[str, CellType]:
    """The variables of a frame that inner functions share with it, or that it shares with outer ones."""
    names = (*frame.f_code.co_cellvars, *frame.f_code.co_freevars)
    cells = [held for held in gc.get_referents(frame) if isinstance(held, CellType)]
    return dict(zip(names, cells, strict=True)) if len(cells) == len(names) else {}


class Readings:
    """The reads of a loop, directly or through generators and classes of the script's own.

    An iterator over ``fed``, also one that the loop makes, gives the batch at hand, once in each round, and ends after
    as many as the loader has. Any other is read anew, with the workers that its loader has.
    """

    def __init__(self, iterators: Iterators, fed: Any = None) -> None:
        self._iterators = iterators
        self._fed = fed
        self._batches = None if fed is None else length_of(fed)
        self._given: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._anew: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._at_hand: list[Any] = []
        self._ended: list[Any] = []  # in this round; the first ``_renewed`` of them are read anew
        self._renewed = 0

    @contextlib.contextmanager
    def giving(self, batch: Any) -> Iterator[None]:
        """Within this context the script's iterators give this batch, once."""
        original, begin = _BaseDataLoaderIter.__next__, DataLoader.__iter__
        self._at_hand, self._ended, self._renewed = [batch], [], 0

        def read(iterator: Any) -> Any:
            loader = self._iterators.get(iterator)
            if loader is None:
                return original(iterator)
            if loader is self._fed and self._at_hand:
                return self._give(iterator)
            if iterator not in self._anew:
                self._anew[iterator] = begin(loader)
            try:
                return original(self._anew[iterator])
            except StopIteration:
                self._ended.append(iterator)
                raise

        def iterate(loader: Any) -> Any:
            if loader is not self._fed:
                return begin(loader)
            with without_workers(loader):  # it is not read
                iterator = begin(loader)
            self._iterators[iterator] = loader
            return iterator

        with replaced(_BaseDataLoaderIter, "__next__", read), replaced(DataLoader, "__iter__", iterate):
            yield

    def never_end(self) -> None:
        """Have the iterators over ``fed`` give batches for ever: the loop has nothing that would begin them anew."""
        self._batches = None

    def _give(self, iterator: Any) -> Any:
        """The batch at hand. Raises StopIteration where the iterator has given all of a pass over the loader."""
        given = self._given.get(iterator, 0)
        if given == self._batches:
            self._ended.append(iterator)
            raise StopIteration
        self._given[iterator] = given + 1
        return self._at_hand.pop()

    def begin_anew(self, batch: Any) -> bool:
        """Read those that came to their end in this round from their beginning; False where none did, or one twice."""
        self._at_hand = [batch]
        for iterator in self._ended:
            self._anew.pop(iterator, None)
            self._given.pop(iterator, None)
        new = self._ended[self._renewed :]
        once = bool(new) and len({*map(id, self._ended)}) == len(self._ended)
        self._renewed = len(self._ended)
        return once


@contextlib.contextmanager
def terminal_as_input() -> Iterator[None]:
    """A terminal of 80 columns as standard input, for scripts that ask it for its size; whoever reads it is at its end.

    Trials have none, and a person's script may come to its loop only in one. Where the system gives none, nothing is
    changed.
    """
    try:
        ours, theirs = os.openpty()
    except OSError:
        yield
        return
    before = os.dup(0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.write(ours, b"\x04" * 64)  # what a person types to end it
    os.dup2(theirs, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        for descriptor in (before, ours, theirs):
            os.close(descriptor)


@contextlib.contextmanager
def without_workers(loader: Any) -> Iterator[None]:
    """Have a loader iterated by the process itself."""
    workers, timeout = loader.num_workers, loader.timeout
    loader.num_workers, loader.timeout = 0, 0
    try:
        yield
    finally:
        loader.num_workers, loader.timeout = workers, timeout
