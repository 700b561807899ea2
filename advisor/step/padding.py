"""Linear layers that compute more outputs than they return, so that their sizes suit the tensor cores."""

from typing import Any

import torch


class PaddedRows(torch.nn.Module):
    """A layer whose weight has rows of zeros at its end.

    ``weight`` is a view without them; ``state_dict`` and ``load_state_dict`` know the usual shapes. The rows get no
    gradient, so they stay zero.
    """

    counted = ""  # the attribute with the number of rows that count

    @property
    def weight(self) -> torch.Tensor:
        """The rows that count."""
        return counting_rows(self, "weight", getattr(self, self.counted))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in [f"{prefix}{name}" for name in self._parameters]:
            if name in destination:
                destination[name] = destination[name][: getattr(self, self.counted)]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        for name, parameter in self._parameters.items():
            given = state_dict.get(f"{prefix}{name}")
            if parameter is not None and given is not None and given.shape[1:] == parameter.shape[1:]:
                state_dict[f"{prefix}{name}"] = with_rows(given, parameter.shape[0])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class PaddedLinear(PaddedRows, torch.nn.Linear):  # type: ignore[override]  # the weight is a view
    """A linear layer with rows of zeros, which returns a view of its results without theirs."""

    counted = "out_features"

    @property
    def bias(self) -> torch.Tensor | None:  # type: ignore[override]
        """The biases without those of padded outputs."""
        return None if self._parameters["bias"] is None else counting_rows(self, "bias", self.out_features)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The outputs without the padded ones."""
        wide = torch.nn.functional.linear(input, stored(self, "weight"), self._parameters["bias"])
        return wide[..., : self.out_features]


class PaddedEmbedding(PaddedRows, torch.nn.Embedding):  # type: ignore[override]  # the weight is a view
    """An embedding that shares its weight with a :class:`PaddedLinear`; no index leads to the rows of zeros."""

    counted = "num_embeddings"

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The vectors of these indices."""
        how = self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        return torch.nn.functional.embedding(input, stored(self, "weight"), *how)


def stored(module: torch.nn.Module, name: str) -> Any:
    """A parameter with its rows of zeros."""
    return module._parameters[name]


def counting_rows(module: torch.nn.Module, name: str, rows: int) -> torch.Tensor:
    """A view of a parameter's first rows, with those of its gradient as ``grad``."""
    whole: torch.Tensor = stored(module, name)
    counting = whole[:rows]
    if not torch.compiler.is_compiling() and whole.grad is not None:
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
        plain = module._parameters.keys() == {"weight", "bias"} and "forward" not in vars(module)
        return type(module) is torch.nn.Embedding or (type(module) is torch.nn.Linear and plain)

    return [
        module
        for module in model.modules()
        if type(module) is torch.nn.Linear and padded_size(module.out_features, multiple) != module.out_features
        if may_grow(module) and all(map(may_grow, owners[id(stored(module, "weight"))]))
        if stored(module, "bias") is None or len(owners[id(stored(module, "bias"))]) == 1
    ]


def pad_outputs(model: torch.nn.Module, multiple: int, optimizer: Any = None) -> dict[torch.Tensor, int]:
    """Pad the outputs of linear layers to a multiple, in place; their results are cut to the former size.

    The parameters stay the same objects with more rows. Returns the number of rows that each had.
    """
    sizes: dict[torch.Tensor, int] = {}
    for linear in layers_to_pad(model, multiple):
        sizes |= dict.fromkeys(linear.parameters(recurse=False), padded_size(linear.out_features, multiple))
    for module in model.modules():
        if any(parameter in sizes for parameter in module.parameters(recurse=False)):
            module.__class__ = PaddedLinear if isinstance(module, torch.nn.Linear) else PaddedEmbedding
    before = {parameter: parameter.shape[0] for parameter in sizes}
    for parameter, rows in sizes.items():
        state = optimizer.state.get(parameter, {}) if optimizer is not None else {}
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = with_rows(value, rows)
        parameter.grad, gradient = None, parameter.grad
        parameter.data = with_rows(parameter, rows)
        parameter.grad = None if gradient is None else with_rows(gradient, rows)
    return before
