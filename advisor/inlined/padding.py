"""Pad the outputs of linear layers, so that their sizes suit the tensor cores; the layers return the usual outputs."""

import torch


class PaddedLinear(torch.nn.Linear):
    """A linear layer that adds rows of zeros to its weight, and returns only the usual outputs.

    The rows are added in each call, so the parameters stay the same objects with their usual shapes.
    """

    padded_features: int

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The outputs without the padding."""
        more = self.padded_features - self.out_features
        weight = torch.nn.functional.pad(self.weight, (0, 0, 0, more))
        bias = None if self.bias is None else torch.nn.functional.pad(self.bias, (0, more))
        return torch.nn.functional.linear(input, weight, bias)[..., : self.out_features]


def padded_size(size: int, multiple: int) -> int:
    """The next multiple if it is at most an eighth larger; else the size itself."""
    padded = -(-size // multiple) * multiple
    return padded if 8 * (padded - size) <= size else size


def layers_to_pad(model: torch.nn.Module, multiple: int) -> list[torch.nn.Linear]:
    """Return the layers of the class ``torch.nn.Linear`` whose outputs can be padded to a multiple."""
    linear = [module for module in model.modules() if type(module) is torch.nn.Linear]
    return [layer for layer in linear if padded_size(layer.out_features, multiple) != layer.out_features]


def pad_outputs(model: torch.nn.Module, multiple: int) -> None:
    """Make linear layers compute padded outputs, up to a multiple. They still return as many as before."""
    for layer in layers_to_pad(model, multiple):
        vars(layer)["padded_features"] = padded_size(layer.out_features, multiple)
        layer.__class__ = PaddedLinear
