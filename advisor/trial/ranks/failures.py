"""The reason why ranks failed: whose error came first, in words for a person."""

import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from advisor.records import Outcome, TrialResult
from advisor.target.entrypoint import one_line

# Calls in which a rank waits: exchanging gradients, a collective, its device; our own read the loss there.
_WAITING_CALLS = ("_engine_run_backward", "in synchronize", "torch/distributed/", "torch/nn/parallel/", "trial/ranks/")
_INNERMOST = 2
SEES_LOG = "The trial's log has the whole story."
RETURN_PLAIN = "Return the plain model and loader from build(): perf-advisor starts the ranks and divides the batches."


@dataclass(frozen=True, slots=True)
class TorchrunReport:
    """The end of torchrun: the exit codes of failed ranks by their process, and one line of reason."""

    codes: dict[int, int] = field(default_factory=dict)
    reason: str = "torchrun ended without an error"
    hint: str = SEES_LOG

    @classmethod
    def of(cls, error: BaseException) -> "TorchrunReport":
        """The report of an error that torchrun raised."""
        if isinstance(error, ChildFailedError):
            rank, first = error.get_first_failure()
            message: Any = first.message  # of a rank that wrote an error file a dict
            text = message["message"] if isinstance(message, dict) else message
            codes = {failure.pid: failure.exitcode for failure in error.failures.values()}
            return cls(codes, f"rank {rank}: {text.strip().splitlines()[-1]}")
        if isinstance(error, dist.DistNetworkError):
            hint = "Name a free port with --rdzv-endpoint HOST:PORT."
            return cls(reason=f"torchrun cannot use its endpoint: {one_line(error)}", hint=hint)
        return cls(reason=f"torchrun failed: {one_line(error)}")


def waited_for_others(error: BaseException) -> bool:
    """Whether an error came out of a call that waits for other ranks: it may follow from the end of one, or its hang.

    Gloo has no class for such errors: there it is any error of a collective, or of a backward pass, which calls them.
    """
    if isinstance(error, dist.DistError):
        return True
    by_gloo = dist.is_initialized() and dist.get_backend() == "gloo"
    if not (by_gloo and isinstance(error, RuntimeError)):
        return False
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return waits_for_others(f'File "{innermost.filename}", line {innermost.lineno} in {innermost.name}')


def waits_for_others(stack: str) -> bool:
    """Whether the innermost calls of a rank are PyTorch's, waiting for a device or for other ranks."""
    calls = [line for line in stack.splitlines() if line.lstrip().startswith("File ")][:_INNERMOST]
    return any(name in call for call in calls for name in _WAITING_CALLS)


def of_death(dead: Sequence[tuple[int, int]], codes: dict[int, int]) -> TrialResult:
    """The first of the ranks, number and process, that ended without a word. ``codes`` are as torchrun saw them.

    torchrun ends the others by SIGTERM once one of them has ended.
    """
    rank, pid = next((one for one in dead if codes.get(one[1], -signal.SIGTERM) != -signal.SIGTERM), dead[0])
    code = codes.get(pid)
    if code is None or code >= 0:
        how = "without a word" if code is None else f"with exit code {code}"
        return TrialResult(Outcome.CRASHED, f"rank {rank}: its process ended {how}", SEES_LOG)
    ended, hint = f"rank {rank}: its process was ended by {signal.Signals(-code).name}", SEES_LOG
    if code == -signal.SIGKILL:
        ended += " (the system kills a process that takes too much memory, unless a person did)"
        hint = "Try a smaller batch size, or look for what ended it."
    elif code == -signal.SIGABRT:
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
