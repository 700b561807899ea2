"""Feed: the endless stream of batches that a trial's steps consume, and the forms of batches that a model can take."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from advisor.errors import AdvisorError, TargetError
from advisor.step.batch import attributes_with_tensors
from advisor.step.loader import length_of
from advisor.step.prefetch import is_loader
from advisor.target.draws import seed_host
from advisor.target.entrypoint import one_line, user_frames
from advisor.trial.measurement.draws import loader_failure, no_batch

# Characters of a batch's description; enough for about six tensors.
_LONGEST_TEXT = 160
_HINT = (
    "Let the dataset and the collate function give every batch the same structure and types, or return "
    "Workload(step=...) with a step(batch) that takes each kind."
)


@dataclass(frozen=True, slots=True)
class Form:
    """The containers, keys, types and dimensions of a batch. ``text`` shows them with the sizes of its tensors."""

    parts: str
    text: str


def form_of(batch: Any) -> Form:
    """The form of a batch; two that differ in sizes only have equal ``parts``."""
    parts = _described(batch, sizes=False)
    if isinstance(batch, list | tuple) and all(isinstance(part, torch.Tensor) for part in batch):
        parts = f"{len(batch)} of {parts}"  # inputs and targets, not samples
    text = _described(batch, sizes=True)
    return Form(parts, text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}...")


def _described(part: Any, *, sizes: bool) -> str:
    """A part of a batch as Python shows it, with types and shapes in place of values.

    Without ``sizes`` tensors have dimensions in place of shapes, and a sequence shows each form of its elements once.
    """
    if isinstance(part, torch.Tensor):
        return f"{str(part.dtype).removeprefix('torch.')}{list(part.shape) if sizes else part.dim()}"
    if isinstance(part, Mapping):
        named = {str(key): _described(value, sizes=sizes) for key, value in part.items()}
        return f"{{{', '.join(f'{key}: {named[key]}' for key in (named if sizes else sorted(named)))}}}"
    if isinstance(part, list | tuple):
        elements = [_described(element, sizes=sizes) for element in part]
        inside = ", ".join(elements if sizes else dict.fromkeys(elements))
        return f"[{inside}]" if isinstance(part, list) else f"({inside})"
    attributes = attributes_with_tensors(part).items()
    named_text = ", ".join(f"{name}={_described(value, sizes=sizes)}" for name, value in attributes)
    return f"{type(part).__name__}({named_text})" if named_text else type(part).__name__


def form_notes(batches: list[Any]) -> list[str]:
    """A sentence where a later batch has another form than the first, other keys for example; none where all agree."""
    forms = [form_of(batch) for batch in batches]
    other = next((turn for turn, form in enumerate(forms) if form.parts != forms[0].parts), None)
    if other is None:
        return []
    return [
        f"the batches change their form: the first is {forms[0].text}, and batch {other + 1} is {forms[other].text}; "
        "each is given to the step as it comes"
    ]


def form_problem(error: Exception, first: Form, batch: Any, turn: int) -> TargetError | None:
    """The error for a step that failed on batch ``turn`` because its form differs from the first batch's; else None.

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


_END = object()


class Feed:
    """Batches from a loader, epoch after epoch, or the one resident batch again and again.

    With a ``seed`` the first epoch begins under it.
    """

    def __init__(self, data: Any, seed: int | None = None) -> None:
        self._data = data
        self._seed = seed
        self._loader: Any = data if is_loader(data) else None
        self._iterator: Iterator[Any] | None = None
        self._served = 0
        self._first: Form | None = None

    def next(self) -> Any:
        """The next batch; a new epoch begins where one ends. Raises TargetError when an epoch yields nothing."""
        if self._loader is None:
            return self._data
        if self._iterator is None:
            if self._seed is not None:
                seed_host(self._seed)
            self._iterator = iter(self._loader)
        batch = self._drawn()
        if batch is _END:
            # Dropped first, as a `for` loop does: its workers have ended before those of the next epoch start.
            self._iterator = None
            self._iterator = iter(self._loader)
            batch = self._drawn()
        if batch is _END and not self._served:
            raise no_batch()
        if batch is _END:
            raise TargetError(
                f"the DataLoader yields nothing after its first {self._served} batches: its dataset can be read once "
                "only.",
                "Let the dataset's __iter__ start from the beginning each time, or give build() one batch.",
            )
        self._served += 1
        if self._first is None:
            self._first = form_of(batch)
        return batch

    def problem_of(self, error: Exception, batch: Any) -> TargetError | None:
        """The error for a step that failed on the last batch; None where that has the form of the first."""
        return None if self._first is None else form_problem(error, self._first, batch, self._served)

    def _drawn(self) -> Any:
        """The epoch's next batch, or ``_END``. Raises TargetError when the loader fails."""
        assert self._iterator is not None
        try:
            return next(self._iterator, _END)
        except Exception as error:
            raise loader_failure(error, self._served + 1) from error

    @property
    def resident(self) -> bool:
        """Whether every step gets the same batch, which is on the device already."""
        return self._loader is None

    @property
    def queued_batches(self) -> int:
        """The number of batches that workers may have ready before the first step: consume them before timing."""
        if self._loader is None or self._loader.num_workers == 0:
            return 0
        return int(self._loader.num_workers * (self._loader.prefetch_factor or 2))

    def cycle(self, most_steps: int) -> int:
        """Number of steps after which the work of a loader's workers repeats: an epoch of no more than ``most_steps``.

        Of longer epochs it is a batch of each worker, which finish theirs at about the same time.
        """
        workers = self._loader.num_workers if self._loader is not None else 0
        if not workers:
            return 1
        epoch = length_of(self._loader)
        return epoch if epoch and epoch <= most_steps else max(1, min(workers, most_steps))
