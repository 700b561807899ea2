"""Values of options as people write them, for the command line and ``advisor.tune``. Mistakes raise UsageError."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeVar

from advisor.errors import UsageError
from advisor.records.kinds import DEVICES

_E = TypeVar("_E", bound=StrEnum)


@contextmanager
def named(option: str) -> Iterator[None]:
    """Inside this context, a UsageError begins with the name of the option or argument that is read."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", error.hint) from None


def count_of(text: str, hint: str = "Write one such as 64.") -> int:
    """A positive whole number. Raises UsageError for anything else."""
    count = text.strip()
    if not re.fullmatch(r"0*[1-9]\d{0,17}", count, re.ASCII):
        raise UsageError(f"{text!r} is not a positive whole number.", hint)
    return int(count)  # int() accepts fewer kinds of blanks than strip()


def device_of(text: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``. Raises UsageError for anything else."""
    device = text.strip().lower()
    gpus = [kind for kind in DEVICES if kind != "cpu"]
    if not re.fullmatch(rf"auto|cpu|({'|'.join(gpus)})(:\d{{1,4}})?", device, re.ASCII):
        kinds = ", ".join(("auto", "cpu", *gpus))
        raise UsageError(f"{text!r} is not a device.", f"Choose {kinds} or {gpus[0]}:N, such as {gpus[0]}:1.")
    return device


def names_of(text: str) -> tuple[str, ...]:
    """The words of a list such as ``autocast,compile``, each once. Raises UsageError if it is empty."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("an empty list names no recipe.", "Write ids such as autocast,channels_last.")
    return names


def choice_of(kind: type[_E]) -> Callable[[str], _E]:
    """A parser for the values of an enumeration. It raises UsageError for any other word."""

    def parse_choice(text: str) -> _E:
        try:
            return kind(text.strip().lower())
        except ValueError:
            hint = f"Choose {alternatives([member.value for member in kind])}."
            raise UsageError(f"{text!r} is not one of the choices.", hint) from None

    return parse_choice


def alternatives(words: Sequence[str]) -> str:
    """Words joined as a choice: ``a, b or c``."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def seconds_of(text: str) -> float:
    """The seconds of ``90``, ``90s``, ``5m``, ``1h`` or ``1h30m``. Raises UsageError unless they are positive."""
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"{number}|(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip().lower(), re.ASCII)
    parts = [float(part) if part else 0.0 for part in match.groups()] if match else [0.0]
    total = sum(part * unit for part, unit in zip(parts, (1, 3600, 60, 1), strict=False))
    if not (0 < total < math.inf):
        raise UsageError(f"{text!r} is not a duration.", "Write a positive one such as 90s, 5m, 1h or 1h30m.")
    return total
