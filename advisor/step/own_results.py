"""The results of a captured step of the user's own: their form, and copies of what replays overwrite."""

import typing

import torch

from advisor.step.capturing import own_copy
from advisor.step.nested import map_tensors, signature_of, tensors_of
from advisor.step.writes import address_of

DIFFERENTIATED = (
    "the loop goes backwards from a tensor that the step returns, which a replay does not record: call backward() in "
    "the step"
)


class ResultParts:
    """Tells what in the results of a step is the step's own, from what is new in each step.

    A state, a dict of metrics or a weight is handed out as it is: the caller of a plain step has the same object each
    time. ``reached`` has what the step reaches, by its number as an object; ``gradients`` are those that stay where
    they are. ``live`` has the numbers of the captured tensors from which a caller of a plain step could go backwards.
    """

    def __init__(self, reached: typing.Mapping[int, typing.Any], gradients: typing.Iterable[torch.Tensor] = ()) -> None:
        self.reached = reached
        self.live: set[int] = set()
        tensors = [one for one in reached.values() if isinstance(one, torch.Tensor)]
        self.addresses = set(map(address_of, [*tensors, *gradients]))

    def form(self, result: typing.Any) -> typing.Any:
        """The structure of a result: types, shapes and Python values, without the contents of its tensors."""
        return signature_of(self._changed(result, signature_of, id))

    def for_caller(self, result: typing.Any) -> typing.Any:
        """A result with copies in place of those tensors that a graph overwrites."""
        return self._changed(result, lambda part: map_tensors(self._copy, part), lambda part: part)

    def awaiting_backward(self, result: typing.Any) -> list[torch.Tensor]:
        """The tensors in a result that are new in each step and from which the caller could go backwards."""
        return [tensor for tensor in tensors_of(result) if not self._is_own(tensor) and awaits_backward(tensor)]

    def _is_own(self, tensor: torch.Tensor) -> bool:
        return address_of(tensor) in self.addresses

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._is_own(tensor):
            return tensor
        copied = own_copy(tensor)
        return copied if id(tensor) not in self.live else Unrecorded.apply(copied.requires_grad_())

    def _changed(
        self,
        part: typing.Any,
        change: typing.Callable[[typing.Any], typing.Any],
        change_own: typing.Callable[[typing.Any], typing.Any],
    ) -> typing.Any:
        """A result with ``change_own`` applied to the objects that the step reaches, and ``change`` to the rest."""
        if id(part) in self.reached and not isinstance(part, torch.Tensor):
            return change_own(part)
        if type(part) is dict:
            return {key: self._changed(value, change, change_own) for key, value in part.items()}
        if type(part) in (list, tuple):
            return type(part)(self._changed(value, change, change_own) for value in part)
        return change(part)


class Unrecorded(torch.autograd.Function):
    """Hands a tensor on. Going backwards through it raises RuntimeError: a replay recorded nothing behind it."""

    @staticmethod
    def forward(ctx: typing.Any, tensor: torch.Tensor) -> torch.Tensor:
        """The same numbers in a tensor that needs gradients."""
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: typing.Any, gradient: torch.Tensor) -> torch.Tensor:
        """Raise, with what to do."""
        raise RuntimeError(f"step.cuda_graph: {DIFFERENTIATED}, or leave step.cuda_graph out")


def awaits_backward(tensor: torch.Tensor) -> bool:
    """Whether the backward pass from a tensor could still run: operators behind it saved values, and none is freed."""
    seen: set[typing.Any] = set()
    waiting, found = [tensor.grad_fn], False
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [earlier for earlier, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_raw_saved_") and (kept := is_kept(node, name)) is not None:
                if not kept:
                    return False
                found = True
    return found


def is_kept(node: typing.Any, name: str) -> bool | None:
    """Whether what an operator saved is still there; None where it saved nothing."""
    try:
        saved = getattr(node, name)
    except RuntimeError:
        return False  # freed, as a function of the user's own says it
    answers = map(is_there, saved if isinstance(saved, tuple) else [saved])
    return next((answer for answer in answers if answer is not None), None)


def is_there(saved: typing.Any) -> bool | None:
    """Whether a saved tensor is not freed yet; None for one that never was.

    It is not read, for what a checkpoint saved is computed by that. PyTorch says it where hooks are registered.
    """
    try:
        saved.register_hooks(as_it_is, as_it_is)
    except RuntimeError as error:
        return None if "value None" in str(error) else "already been set" in str(error)
    return True


def as_it_is(saved: typing.Any) -> typing.Any:
    """A hook that changes nothing."""
    return saved
