"""Contexts that change an attribute or a variable, or stop the garbage collector, for a while."""

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of a module, a class or an object another value inside the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change variables of the environment inside the block, for a process that is started there."""
    before = {name: os.environ[name] for name in changes if name in os.environ}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in changes:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextmanager
def collector_waits() -> Iterator[None]:
    """Switch garbage collection off inside the block. During imports it finds nothing but takes a tenth of a start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
