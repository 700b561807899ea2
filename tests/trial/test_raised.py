"""What a person is told when the first step of the workload fails."""

import errno
import inspect
import sys

import pytest
import torch
import torch._dynamo
from torch import randn

from advisor.records import Cause, Outcome
from advisor.step.graph import CaptureError
from advisor.trial.raised import causes_of, result_of


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing failed")


def test_a_refusal_of_the_system_says_what_to_do():
    result = result_of(OSError(errno.EMFILE, "Too many open files"))
    assert result.reason == "OSError: [Errno 24] Too many open files"
    assert "ulimit -a" in result.hint


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_what_runs_out_of_memory_is_told_apart(error):
    assert result_of(error).outcome is Outcome.OUT_OF_MEMORY


def compiles_a_branch():
    torch.compile(lambda x: x if x.sum() > 0 else -x, fullgraph=True, backend="eager")(randn(2))


def breaks_a_backend():
    torch.compile(lambda x: x + 1, backend=lambda graph, inputs: 1 / 0)(randn(2))


def derives_twice():
    weight = randn(4, requires_grad=True)
    model = torch.compile(lambda x: (x * weight).sin(), backend="aot_eager")
    torch.autograd.grad(model(randn(4)).sum(), weight, create_graph=True)[0].sum().backward()


def test_a_backward_pass_that_keeps_its_graph_is_told_by_pytorchs_text():
    """Whether code has such buffers depends on its kernels; the text is in PyTorch's source."""
    wrappers = sys.modules["torch._functorch._aot_autograd.runtime_wrappers"]  # the compiler has imported it
    assert "compiled with non-empty donated" in inspect.getsource(wrappers)
    error = RuntimeError("This backward function was compiled with non-empty donated buffers which requires ...")
    assert causes_of(error)[0] is Cause.DOUBLE_BACKWARD


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        pytest.param(compiles_a_branch, Cause.COMPILER, marks=pytest.mark.compile),
        pytest.param(breaks_a_backend, Cause.COMPILER, marks=pytest.mark.compile),
        pytest.param(derives_twice, Cause.DOUBLE_BACKWARD, marks=pytest.mark.compile),
        (lambda: randn(2, 3, 4).permute(2, 0, 1).view(-1), Cause.LAYOUT),
        (lambda: randn(2, 3).to(memory_format=torch.channels_last), Cause.LAYOUT),
        (lambda: randn(2, 3) @ randn(3, 2).bfloat16(), Cause.OPERATION),
        (lambda: torch._C._dynamo.guards.assert_size_stride(randn(2, 3), (2, 3), (1, 2)), Cause.LAYOUT),
    ],
)
def test_the_cause_of_a_failure_is_told_by_its_type_or_pytorchs_text(call, cause):
    error = raised(call)
    assert next(iter(causes_of(error))) is cause
    assert cause in result_of(error).causes


def in_backward():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise RuntimeError("operation not permitted when stream is capturing")

    Fails.apply(randn(2, requires_grad=True)).sum().backward()


def copies_from_host():
    # As PyTorch words it; without a GPU nothing can be captured.
    raise RuntimeError(
        "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned."
    )


@pytest.mark.parametrize(
    ("call", "causes"),
    [(in_backward, {Cause.CAPTURE, Cause.CAPTURE_OF_BACKWARD}), (copies_from_host, {Cause.CAPTURE, Cause.HOST_COPY})],
)
def test_the_place_where_a_capture_failed_is_a_cause(call, causes):
    failure = raised(call)
    error = CaptureError(str(failure))
    error.__cause__ = failure
    assert set(causes_of(error)) == causes
