"""The reason why ranks failed: whose error came first, in words for a person."""

import signal
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from advisor.records import Outcome, TrialResult
from advisor.workloads.entrypoint import one_line

# Calls in which a rank waits: exchanging gradients, a collective, its device; our own read the loss there.
_WAITING_CALLS = ("_engine_run_backward", "in synchronize", "torch/distributed/", "torch/nn/parallel/", "trial/ranks/")
_INNERMOST = 2
SEES_LOG = "The trial's log has the whole story."
RETURN_PLAIN = "Return the plain model and loader from build(): perf-advisor starts the ranks and divides the batches."


def waited_for_others(error: BaseException) -> bool:
    """Whether an error may follow from the end or the hang of another rank.

    Gloo has no class for such errors: there it is any RuntimeError, as a collective raises.
    """
    by_gloo = dist.is_initialized() and dist.get_backend() == "gloo"
    return isinstance(error, dist.DistError) or (by_gloo and isinstance(error, RuntimeError))


def waits_for_others(stack: str) -> bool:
    """Whether the innermost calls of a rank are PyTorch's, waiting for a device or for other ranks."""
    calls = [line for line in stack.splitlines() if line.lstrip().startswith("File ")][:_INNERMOST]
    return any(name in call for call in calls for name in _WAITING_CALLS)


def of_torchrun(error: BaseException) -> TrialResult:
    """The result of a trial that torchrun ended with an error: that of the rank that ended first, or its own."""
    if isinstance(error, dist.DistNetworkError):
        reason = f"torchrun cannot use its endpoint: {one_line(error)}"
        return TrialResult(Outcome.FAILED, reason, "Name a free port with --rdzv-endpoint HOST:PORT.")
    if not isinstance(error, ChildFailedError):
        return TrialResult(Outcome.FAILED, f"torchrun failed: {one_line(error)}", SEES_LOG)
    rank, first = error.get_first_failure()
    if first.exitcode >= 0:
        message: Any = first.message  # of a rank that wrote an error file a dict
        text = message["message"] if isinstance(message, dict) else message
        return TrialResult(Outcome.FAILED, f"rank {rank}: {text.strip().splitlines()[-1]}", SEES_LOG)
    ended, hint = f"rank {rank}: its process was ended by {signal.Signals(-first.exitcode).name}", SEES_LOG
    if first.exitcode == -signal.SIGKILL:
        ended += " (the system kills a process that takes too much memory, unless a person did)"
        hint = "Try a smaller batch size, or look for what ended it."
    elif first.exitcode == -signal.SIGABRT:
        ended += " (NCCL ends a rank that has waited for another too long)"
    return TrialResult(Outcome.CRASHED, ended, hint)


def of_no_meeting(options: Sequence[str], how: str) -> TrialResult:
    """No rank was started, since torchrun's processes on the machines did not meet where ``options`` say."""
    named = dict(zip(options[::2], options[1::2], strict=False))
    return TrialResult(
        Outcome.TIMED_OUT,
        f"the machines did not meet at {named.get('--rdzv-endpoint', 'their endpoint')}: {how}",
        "Name a free port of the first machine that all reach; on the others start `perf-advisor follow` with the same "
        "options.",
    )
