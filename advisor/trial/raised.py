"""The result of a trial that raised an error: its outcome, causes and reason, and advice for the person."""

import contextlib
import re
import traceback

import torch
from torch._dynamo.exc import TorchDynamoException

from advisor.errors import AdvisorError, TargetError, TooSlowError, refusal_of
from advisor.records import Cause, Outcome, TrialResult
from advisor.step.graph import CaptureError
from advisor.step.loss import LossCall, LossError
from advisor.workloads.entrypoint import message_of, one_line, user_frames

# Texts of errors that have neither a class nor an attribute of their own.
_TEXTS = {
    "Cannot copy between CPU and CUDA tensors": Cause.HOST_COPY,
    "double backward": Cause.DOUBLE_BACKWARD,
    "donated buffers": Cause.DOUBLE_BACKWARD,  # from a backward pass that keeps its graph
    "view size is not compatible": Cause.LAYOUT,
    "to use channels_last": Cause.LAYOUT,
}
_CPU_ALLOCATOR = "DefaultCPUAllocator: "
# Messages of PyTorch's CPU allocator, the driver and libraries if there is no memory.
_NO_MEMORY = re.compile(rf"{_CPU_ALLOCATOR}|CUDA error: out of memory|(CUBLAS|CUDNN)_STATUS_\w*ALLOC\w*_FAILED")
# The function in which PyTorch runs a backward pass, in a traceback (PyTorch 2.6 to 2.14).
_BACKWARD = "_engine_run_backward"


def result_of(error: BaseException) -> TrialResult:
    """The result of a trial that raised an error. Running out of memory is recognised anywhere in the user's code."""
    cause = error.__cause__ if isinstance(error, TargetError) and error.__cause__ else error
    text, causes = message_of(cause), causes_of(error)
    if isinstance(cause, MemoryError | torch.OutOfMemoryError) or (
        isinstance(cause, RuntimeError) and _NO_MEMORY.search(text)
    ):
        # The first sentences are about the request, the others about the allocator.
        line = next(iter(text.rpartition(_CPU_ALLOCATOR)[2].strip().splitlines()), "")
        reason = ". ".join(line.split(". ")[:2]).rstrip(".") + "." if line else type(cause).__name__
        outcome, hint, details, causes = Outcome.OUT_OF_MEMORY, "Try a smaller batch size.", user_frames(cause), ()
    elif isinstance(error, AdvisorError):
        outcome = Outcome.TIMED_OUT if isinstance(error, TooSlowError) else Outcome.FAILED
        reason, hint, details = error.message, error.hint, error.details
    elif isinstance(error, LossError):
        outcome, reason, hint, details = Outcome.FAILED, error.message, error.hint, ""
    else:
        outcome, reason, details = Outcome.FAILED, one_line(error), user_frames(error)
        hint = "The trial's log has more details."
        if refused := refusal_of(error):
            hint = refused.hint
        elif not isinstance(error, Exception):  # such as SystemExit
            hint = "Fix the lines below: measured code may not end the program."
    with contextlib.suppress(Exception):  # standard error may be an object of the user's
        traceback.print_exception(error)
    return TrialResult(outcome, reason, hint, details, causes)


def causes_of(error: BaseException) -> tuple[Cause, ...]:
    """The part that failed, as far as the error shows it."""
    causes = [cause for text, cause in _TEXTS.items() if text in message_of(error)]
    if isinstance(error, CaptureError):
        called = {frame.name for frame in traceback.extract_tb((error.__cause__ or error).__traceback__)}
        places = {LossCall.of_output.__name__: Cause.CAPTURE_OF_LOSS, _BACKWARD: Cause.CAPTURE_OF_BACKWARD}
        causes += [Cause.CAPTURE, *(cause for name, cause in places.items() if name in called)]
    elif isinstance(error, TorchDynamoException):
        causes.append(Cause.COMPILER)
    elif isinstance(error, AssertionError):  # compiled code checks the layouts of its inputs
        causes.append(Cause.LAYOUT)
    elif type(error) in (RuntimeError, NotImplementedError, TypeError):
        causes.append(Cause.OPERATION)
    return tuple(causes)
