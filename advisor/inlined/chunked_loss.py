"""The cross-entropy of a large vocabulary in chunks of rows. The loss computes the scores of the last linear layer."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_LARGE = 16_384  # with so many outputs (a vocabulary), a layer's scores are most of a step's memory
_CHUNKS = 8  # the number of chunks of rows: only an eighth of the scores is in memory at a time


def chunk_loss(model: torch.nn.Module) -> None:
    """Make a model's last layer leave its scores to the loss. The model is changed in place, its parameters are not."""
    if head := large_head(model):
        head.__class__ = ChunkedHead


def large_head(model: torch.nn.Module) -> torch.nn.Linear | None:
    """The last layer of a model, if it is a ``torch.nn.Linear`` with as many outputs as a large vocabulary."""
    layers = [module for module in model.modules() if [*module.named_parameters(recurse=False)]]
    last = layers[-1] if layers else None
    return last if type(last) is torch.nn.Linear and last.out_features >= _LARGE else None


class ChunkedHead(torch.nn.Linear):
    """A linear layer that returns :class:`Scores` in training while autograd records."""

    def forward(self, input: Tensor) -> Any:  # noqa: A002
        """The scores of the inputs (..., in_features)."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        return Scores(input, self, dtype)


class Scores:
    """The outputs of a linear layer (..., classes), which cross_entropy computes in chunks of rows.

    Slices, ``view(-1, classes)`` and other operations that keep the classes in the last dimension return Scores, and
    so does ``transpose(1, 2)`` of three dimensions. All other operations use the tensor of all outputs.
    """

    def __init__(self, hidden: Tensor, head: torch.nn.Linear, dtype: torch.dtype, *, swaps: bool = False) -> None:
        self.hidden = hidden
        self.head = head
        self.dtype = dtype
        self.swaps = swaps  # whether the last two dimensions are swapped
        self.device = hidden.device
        shape = [*hidden.shape[:-1], head.out_features]
        self.shape = torch.Size([shape[0], shape[2], shape[1]] if swaps else shape)
        self.ndim = len(shape)

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a PyTorch function: cross_entropy in chunks of rows, other functions with the tensor of all scores."""
        given = kwargs or {}
        if function is functional.cross_entropy and (loss := _in_chunks(*args, **given)) is not None:
            return loss
        given = {name: one.whole() if isinstance(one, cls) else one for name, one in given.items()}
        return function(*(one.whole() if isinstance(one, cls) else one for one in args), **given)

    def whole(self) -> Tensor:
        """The tensor of all scores."""
        head, hidden = self.head, self.hidden.to(self.dtype)
        bias = None if head.bias is None else head.bias.to(self.dtype)
        scores = functional.linear(hidden, head.weight.to(self.dtype), bias)
        return scores.transpose(1, 2) if self.swaps else scores

    def view(self, *shape: Any) -> Any:
        """The scores in another shape."""
        sizes = shape[0] if isinstance(shape[0], list | tuple) else shape
        if self.swaps or sizes[-1] != self.head.out_features:
            return self.whole().reshape(*shape)
        return Scores(self.hidden.reshape(*sizes[:-1], self.head.in_features), self.head, self.dtype)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """The scores with several dimensions merged into one."""
        if self.swaps or end_dim in (-1, self.ndim - 1):
            return self.whole().flatten(start_dim, end_dim)
        return Scores(self.hidden.flatten(start_dim, end_dim), self.head, self.dtype)

    def transpose(self, one: int, other: int) -> Any:
        """The scores with two dimensions swapped."""
        if self.ndim != 3 or {one % 3, other % 3} != {1, 2}:
            return self.whole().transpose(one, other)
        return Scores(self.hidden, self.head, self.dtype, swaps=not self.swaps)

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        to_the_last = Ellipsis in parts or len(parts) == self.ndim
        keeps_classes = parts[-1] == slice(None) if to_the_last else len(parts) < self.ndim
        if self.swaps or not keeps_classes or not all(isinstance(one, slice | int) or one is Ellipsis for one in parts):
            return self.whole()[index]
        return Scores(self.hidden[index], self.head, self.dtype)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The number of dimensions."""
        return self.ndim

    def contiguous(self) -> Any:
        """Return these scores, which have no memory layout."""
        return self

    def __mul__(self, other: Any) -> Any:
        return self.whole() * other

    def __truediv__(self, other: Any) -> Any:
        return self.whole() / other

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.whole(), name)

    float = contiguous  # the loss is computed in float32 anyway
    reshape = view


def _in_chunks(
    scores: Any, target: Any, *others: Any, ignore_index: int = -100, reduction: str = "mean", **options: Any
) -> Tensor | None:
    """The cross-entropy of scores; None if they are not rows of classes or if the loss has unusual arguments."""
    has_rows = isinstance(scores, Scores) and (scores.ndim == 2 or scores.swaps)
    is_usual = target.dtype is torch.int64 and reduction in ("mean", "sum") and not options.pop("label_smoothing", 0.0)
    if not has_rows or not is_usual or not all(one is None for one in (*others, *options.values())):
        return None
    head, rows = scores.head, scores.hidden.reshape(-1, scores.head.in_features)
    total: Tensor = _Chunked.apply(rows, head.weight, head.bias, target.reshape(-1), ignore_index, scores.dtype)
    return total / (target != ignore_index).sum() if reduction == "mean" else total


class _Chunked(torch.autograd.Function):
    """The sum of the losses of rows (rows, features). The gradients of a chunk are computed together with its loss."""

    @staticmethod
    def forward(context: Any, *given: Any) -> Any:
        hidden, weight, bias, target, ignore_index, dtype = given
        exact = torch.promote_types(dtype, torch.float32)
        learns_weight, learns_bias = context.needs_input_grad[1:3]
        of_weight = torch.zeros_like(weight, dtype=exact) if learns_weight else None
        of_bias = torch.zeros_like(weight[:, 0], dtype=exact) if learns_bias else None
        of_hidden, total = torch.empty_like(hidden), hidden.new_zeros((), dtype=exact)
        rows = max(1, -(-len(hidden) // _CHUNKS))
        with torch.autocast(hidden.device.type, enabled=False):
            weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
            for first in range(0, len(hidden), rows):
                part, labels = hidden[first : first + rows].to(dtype), target[first : first + rows]
                logs = functional.log_softmax(functional.linear(part, weight, bias), -1, dtype=exact)
                loss = functional.nll_loss(logs, labels, ignore_index=ignore_index, reduction="sum")
                total = total + loss  # not in place: PyTorch 2.11's compiler loses gradients of in-place results
                counts = labels != ignore_index
                gradient = logs.exp_()
                gradient.scatter_add_(1, labels.where(counts, 0)[:, None], gradient.new_full((len(labels), 1), -1.0))
                gradient = gradient.mul_(counts[:, None]).to(dtype)
                of_hidden[first : first + rows] = gradient @ weight
                if of_weight is not None:
                    of_weight += gradient.T @ part
                if of_bias is not None:
                    of_bias += gradient.sum(0, dtype=exact)
        context.save_for_backward(of_hidden, of_weight, of_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(context: Any, scale: Tensor) -> Any:
        gradients = (None if one is None else one * scale for one in context.saved_tensors)
        return (*gradients, None, None, None)
