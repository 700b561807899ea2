"""Tensors of every layout, compared by their values."""

import pytest
import torch

from advisor.step.dependence import are_different
from advisor.step.layouts import have_equal_values, strided_parts


def jagged(values):
    return torch.nested.nested_tensor([values[:1], values[1:]], layout=torch.jagged)


LAYOUTS = {
    "strided": lambda values: values,
    "COO": torch.Tensor.to_sparse,
    "CSR": torch.Tensor.to_sparse_csr,
    "CSC": torch.Tensor.to_sparse_csc,
    "BSR": lambda values: values.to_sparse_bsr((2, 2)),
    "BSC": lambda values: values.to_sparse_bsc((2, 2)),
    "jagged": jagged,
    "nested": lambda values: torch.nested.nested_tensor([values[:1], values[1:]]),
    "quantized": lambda values: torch.quantize_per_tensor(values, 0.1, 0, torch.qint8),
}


def values(corner=1.0):
    made = torch.zeros(4, 4)
    made[0, 0], made[3, 2] = corner, 2.0
    return made


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
def test_tensors_of_every_layout_are_compared_by_their_values(layout):
    one, same, other = layout(values()), layout(values()), layout(values(corner=3.0))
    assert have_equal_values(one, same)
    assert not have_equal_values(one, other)
    assert not are_different([one], [same])
    assert are_different([one], [other])


def test_tensors_of_two_layouts_differ():
    assert not have_equal_values(values(), values().to_sparse())
    assert not have_equal_values(values(), jagged(values()))
    assert not have_equal_values(values(), values()[:2])
    assert not strided_parts(values().to("meta"))
