"""The forms of batches: a step that fails on a batch which is built in another way than the first says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from advisor.errors import AdvisorError, TargetError
from advisor.portable.nested import attributes_with_tensors
from advisor.target.entrypoint import one_line, user_frames

# Characters of a batch's description; enough for about six tensors.
_LONGEST_TEXT = 160
_HINT = (
    "Let the dataset and the collate function give every batch the same structure and types, or return "
    "Workload(step=...) with a step(batch) that takes each kind."
)


@dataclass(frozen=True, slots=True)
class Form:
    """The containers, keys, types and dimensions of a batch. ``text`` shows them with the sizes of its tensors."""

    parts: Any
    text: str


def form_of(batch: Any) -> Form:
    """The form of a batch; two that differ in sizes only have equal ``parts``."""
    parts = _parts(batch)
    if isinstance(batch, list | tuple) and all(isinstance(part, torch.Tensor) for part in batch):
        parts = (len(batch), parts)  # inputs and targets, not samples
    text = _text(batch)
    return Form(parts, text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}...")


@contextlib.contextmanager
def compared_with(first: Form, batch: Any, turn: int) -> Iterator[None]:
    """Raise, in place of what a step raises, the TargetError for a batch of another form than the first."""
    try:
        yield
    except Exception as error:
        if problem := form_problem(error, first, batch, turn):
            raise problem from error
        raise


def form_problem(error: Exception, first: Form, batch: Any, turn: int) -> TargetError | None:
    """The error that says in what batch ``turn``, on which a step failed, differs from the first; None for one alike.

    None as well where ``error`` says what to do already.
    """
    if isinstance(error, AdvisorError):
        return None
    form = form_of(batch)
    if form.parts == first.parts:
        return None
    return TargetError(
        f"the step fails on batch {turn}, which is {form.text}, where the first is {first.text}: {one_line(error)}",
        _HINT,
        user_frames(error),
    )


def _parts(part: Any) -> Any:
    """What two parts of batches are compared by. The elements of a sequence count once for each form among them."""
    if isinstance(part, torch.Tensor):
        return part.dtype, part.dim()
    if isinstance(part, Mapping):
        return type(part), {key: _parts(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        alike: list[Any] = []
        for element in map(_parts, part):
            if element not in alike:
                alike.append(element)
        return type(part), alike
    return type(part), {name: _parts(value) for name, value in attributes_with_tensors(part).items()}


def _text(part: Any) -> str:
    """A part of a batch as Python shows it, with types and shapes in place of values."""
    if isinstance(part, torch.Tensor):
        return f"{str(part.dtype).removeprefix('torch.')}{list(part.shape)}"
    if isinstance(part, Mapping):
        return f"{{{', '.join(f'{key}: {_text(value)}' for key, value in part.items())}}}"
    if isinstance(part, list | tuple):
        inside = ", ".join(map(_text, part))
        return f"[{inside}]" if isinstance(part, list) else f"({inside})"
    named = ", ".join(f"{name}={_text(value)}" for name, value in attributes_with_tensors(part).items())
    return f"{type(part).__name__}({named})" if named else type(part).__name__
