"""The expected duration of a first compilation.

Tracing takes time for each operation. Generating code takes time for each operation that differs from the others: the
number of different shapes among the parameters stands for those. A transformer has few, a convolutional network many.
"""

from __future__ import annotations

from advisor.records import Facts, Mode

# By least squares over eleven models in training on an H200's host (16 cores of a Xeon), torch 2.11, compiled as one
# with the loss; tests/test_compile_time.py has them. Seconds.
_AT_LEAST_S = 5.0
_PER_OPERATION_S = 0.028
_PER_SHAPE_S = 0.88
# Without a backward pass: 14 s for a ResNet-50, 13 s for a ViT-S.
_FORWARD_SHARE = 0.3
# Where operations and shapes are not known, the usual ones for each parameter tensor.
_OPERATIONS_PER_TENSOR = 2
_SHAPES_PER_TENSOR = 1 / 6


def expected_compile_s(facts: Facts) -> float:
    """The seconds that compiling the model and its loss usually takes, without the rest of the trial."""
    tensors = facts.workload.parameter_tensors
    operations = facts.operations or _OPERATIONS_PER_TENSOR * tensors
    shapes = facts.workload.parameter_shapes or _SHAPES_PER_TENSOR * tensors
    share = 1.0 if facts.workload.mode is Mode.TRAIN else _FORWARD_SHARE
    return _AT_LEAST_S + share * (_PER_OPERATION_S * operations + _PER_SHAPE_S * shapes)
