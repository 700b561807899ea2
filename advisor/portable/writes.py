"""Where the memory of tensors begins, and which tensors an operator writes to."""

from typing import Any

import torch

from advisor.portable.nested import tensors_of


def address_of(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor begins; of one without memory of its own, its number as an object."""
    try:
        return tensor.untyped_storage().data_ptr() or -id(tensor)
    except (RuntimeError, NotImplementedError):
        return -id(tensor)


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operator writes to."""
    arguments = getattr(getattr(func, "_schema", None), "arguments", ())
    return [
        tensor
        for place, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for tensor in tensors_of(args[place] if place < len(args) else kwargs.get(argument.name))
    ]
