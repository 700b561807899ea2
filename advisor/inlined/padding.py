"""Linear layers that compute more outputs than they return, so that their sizes suit the tensor cores."""

import torch


class PaddedLinear(torch.nn.Linear):
    """A linear layer that multiplies by its weight with rows of zeros added, and returns the usual outputs.

    The rows are added in each call: the parameters stay the objects that they are, in their usual shapes.
    """

    padded_features: int

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The outputs without the padded ones."""
        more = self.padded_features - self.out_features
        weight = torch.nn.functional.pad(self.weight, (0, 0, 0, more))
        bias = None if self.bias is None else torch.nn.functional.pad(self.bias, (0, more))
        return torch.nn.functional.linear(input, weight, bias)[..., : self.out_features]


def padded_size(size: int, multiple: int) -> int:
    """The next multiple if it is at most an eighth larger; else the size itself."""
    padded = -(-size // multiple) * multiple
    return padded if 8 * (padded - size) <= size else size


def layers_to_pad(model: torch.nn.Module, multiple: int) -> list[torch.nn.Linear]:
    """Return the linear layers of PyTorch's own class whose outputs can be padded to a multiple."""
    linear = [module for module in model.modules() if type(module) is torch.nn.Linear]
    return [layer for layer in linear if padded_size(layer.out_features, multiple) != layer.out_features]


def pad_outputs(model: torch.nn.Module, multiple: int) -> None:
    """Have linear layers compute outputs up to a multiple, in place; they return as many as before."""
    for layer in layers_to_pad(model, multiple):
        vars(layer)["padded_features"] = padded_size(layer.out_features, multiple)
        layer.__class__ = PaddedLinear
