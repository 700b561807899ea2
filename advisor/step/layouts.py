"""Tensors of every layout, taken apart into the ordinary tensors that hold their values."""

import torch

# The methods that return the parts of a sparse tensor, by its layout.
SPARSE = {
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_coo": ("_indices", "_values"),  # these work also where indices occur twice
}


def strided_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The ordinary tensors that a tensor consists of: itself, or indices and values, or the parts of a nested tensor.

    A tensor without values, on the device "meta", has no parts.
    """
    tensor = tensor.detach()
    if tensor.is_meta:
        return ()
    if str(tensor.layout) in SPARSE:
        return tuple(getattr(tensor, name)() for name in SPARSE[str(tensor.layout)])
    if tensor.is_nested:
        return tuple(tensor.unbind())
    if tensor.is_quantized:
        return (tensor.int_repr(),)
    return (tensor if tensor.layout is torch.strided else tensor.to_dense(),)


def have_equal_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same layout, shape and values. NaN equals nothing, as in ``torch.equal``."""
    if one.layout is not other.layout or one.is_nested is not other.is_nested:
        return False
    if not one.is_nested and one.shape != other.shape:
        return False
    ours, theirs = strided_parts(one), strided_parts(other)
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))
