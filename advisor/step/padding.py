"""Linear layers that compute more outputs than they return, so that their sizes suit the tensor cores."""

from typing import Any

import torch


class PaddedRows(torch.nn.Module):
    """A layer whose parameters have rows of zeros at their end.

    ``weight`` and ``bias`` are views of the first ``rows``, those that count; ``state_dict`` and ``load_state_dict``
    know the usual shapes. The other rows get no gradient, so they stay zero.
    """

    rows: int
    _parameters: dict[str, Any]

    @property
    def weight(self) -> Any:
        """The rows that count, with those of the gradient as ``grad``."""
        return counting_rows(self._parameters["weight"], self.rows)

    @property
    def bias(self) -> Any:
        """The same of the biases; None without any."""
        return counting_rows(self._parameters.get("bias"), self.rows)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in [f"{prefix}{name}" for name in self._parameters]:
            if name in destination:
                destination[name] = destination[name][: self.rows]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        for name, parameter in self._parameters.items():
            given = state_dict.get(f"{prefix}{name}")
            if parameter is not None and given is not None:
                state_dict[f"{prefix}{name}"] = with_rows(given, parameter.shape[0])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class PaddedLinear(PaddedRows, torch.nn.Linear):  # type: ignore[override]  # the weight is a view
    """A linear layer with rows of zeros, which returns a view of its results without theirs."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The outputs without the padded ones."""
        wide = torch.nn.functional.linear(input, self._parameters["weight"], self._parameters["bias"])
        return wide[..., : self.rows]


class PaddedEmbedding(PaddedRows, torch.nn.Embedding):  # type: ignore[override]  # the weight is a view
    """An embedding that shares its weight with a :class:`PaddedLinear`; no index leads to the rows of zeros."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The vectors of these indices."""
        how = self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        return torch.nn.functional.embedding(input, self._parameters["weight"], *how)


def counting_rows(whole: Any, rows: int) -> Any:
    """A view of a parameter's first rows, with those of its gradient as ``grad``; None for None."""
    counting = None if whole is None else whole[:rows]
    if counting is not None and not torch.compiler.is_compiling() and whole.grad is not None:
        counting.grad = whole.grad[:rows]
    return counting


def with_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """A tensor, padded with rows of zeros to a number of rows."""
    if tensor.shape[0] >= rows:
        return tensor
    padded = tensor.detach().new_zeros(rows, *tensor.shape[1:])
    padded[: tensor.shape[0]] = tensor.detach()
    return padded


def padded_size(size: int, multiple: int) -> int:
    """The next multiple, where that adds an eighth at most; else the size as it is."""
    padded = -(-size // multiple) * multiple
    return padded if 8 * (padded - size) <= size else size


def layers_to_pad(model: torch.nn.Module, multiple: int) -> list[torch.nn.Linear]:
    """Return the linear layers of PyTorch's own whose outputs can be padded to a multiple.

    A weight that others use too is padded when those are linear layers and embeddings of PyTorch's own as well.
    """
    owners: dict[int, list[torch.nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            owners.setdefault(id(parameter), []).append(module)

    def may_grow(module: torch.nn.Module) -> bool:
        plain = type(module) is torch.nn.Linear and module._parameters.keys() == {"weight", "bias"}
        return plain or type(module) is torch.nn.Embedding

    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and may_grow(module)]
    return [
        layer
        for layer in linear
        if padded_size(layer.out_features, multiple) != layer.out_features
        and all(map(may_grow, owners[id(layer.weight)]))
        and (layer.bias is None or len(owners[id(layer.bias)]) == 1)
    ]


def pad_outputs(model: torch.nn.Module, multiple: int, optimizer: Any = None) -> dict[torch.Tensor, int]:
    """Pad the outputs of linear layers to a multiple, in place; their results are cut to the former size.

    The parameters stay the same objects with more rows. Returns the number of rows that each had.
    """
    sizes: dict[torch.Tensor, int] = {}
    for linear in layers_to_pad(model, multiple):
        sizes |= dict.fromkeys(linear.parameters(recurse=False), padded_size(linear.out_features, multiple))
    before = {parameter: parameter.shape[0] for parameter in sizes}
    for module in model.modules():
        weight: Any = module._parameters.get("weight")
        if weight in before:
            vars(module)["rows"] = before[weight]
            module.__class__ = PaddedLinear if isinstance(module, torch.nn.Linear) else PaddedEmbedding
    for parameter, rows in sizes.items():
        state = optimizer.state.get(parameter, {}) if optimizer is not None else {}
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = with_rows(value, rows)
        parameter.grad, gradient = None, parameter.grad
        parameter.data = with_rows(parameter, rows)
        parameter.grad = None if gradient is None else with_rows(gradient, rows)
    return before
