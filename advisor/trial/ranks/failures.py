"""The reason why ranks failed: whose error came first, in words for a person."""

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from advisor.process.stacks import innermost_calls, tail
from advisor.records import Outcome, TrialResult
from advisor.records.parallel import UNUSED_PARAMETERS

# Errors of a rank that lost its peers, or waited for them in vain: they say nothing of its own code.
_OF_OTHERS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Timed out waiting",
    "Socket Timeout",
    "socketTimeout",
    "Watchdog caught collective operation timeout",
    "NCCL communicator was aborted",
    "remote process exited",
    "Broken pipe",
    "Gloo connectFullMesh failed",
    "wait timeout after",
)
_WATCHDOG = "Watchdog caught collective operation timeout"
_UNUSED = "Expected to have finished reduction in the prior iteration"
_TWICE = "trying to initialize the default process group twice"
_TAKEN = ("EADDRINUSE", "Address already in use", "address already in use")
# Calls in which a rank waits: exchanging gradients, a collective, its device.
_WAITING_CALLS = ("_engine_run_backward", "distributed_c10d.py", "in synchronize", "torch/distributed/")
_INNERMOST = 2
_TAIL_BYTES = 2**16
_SEES_LOG = "The trial's log has the whole story."
RETURN_PLAIN = "Return the plain model and loader from build(): perf-advisor starts the ranks and divides the batches."


def blames_another(result: TrialResult | None) -> bool:
    """Whether a rank's error follows from the end or the silence of another."""
    return result is not None and any(text in f"{result.reason}\n{result.details}" for text in _OF_OTHERS)


def of_rank(rank: int, result: TrialResult | None) -> TrialResult:
    """A rank's own error, which names it."""
    assert result is not None
    reason, hint = result.reason, result.hint
    if _UNUSED in f"{reason}{result.details}":
        reason = UNUSED_PARAMETERS
        hint = "Set `parallel.find_unused_parameters: true`, or leave these layers out of the model."
    elif _TWICE in reason:
        hint = RETURN_PLAIN
    return replace(result, reason=f"rank {rank}: {reason}", hint=hint)


def of_death(dead: Sequence[tuple[int, int]], log_path: str) -> TrialResult:
    """The first of the ranks, number and process, that ended without a word: torchrun tells by which signal.

    torchrun ends the others by SIGTERM once one of them has ended.
    """
    log = tail(log_path, _TAIL_BYTES)
    codes = {int(pid): int(code) for code, pid in re.findall(r"exitcode\s*:\s*(-?\d+)\s*\(pid:\s*(\d+)\)", log)}
    by_itself = (one for one in dead if codes.get(one[1], -signal.SIGTERM) != -signal.SIGTERM)
    rank, pid = next(by_itself, dead[0])
    code = codes.get(pid)
    if code is None:
        return TrialResult(Outcome.CRASHED, f"rank {rank}: its process ended without a word", _SEES_LOG)
    if code >= 0:
        return TrialResult(Outcome.CRASHED, f"rank {rank}: its process ended with exit code {code}", _SEES_LOG)
    ended = f"rank {rank}: its process was ended by {signal.Signals(-code).name}"
    if code != -signal.SIGKILL:
        return TrialResult(Outcome.CRASHED, ended, _SEES_LOG)
    why = " (the system kills a process that takes too much memory, unless a person did)"
    return TrialResult(Outcome.CRASHED, ended + why, "Try a smaller batch size, or look for what ended it.")


def of_hang(silent: Sequence[tuple[int, int, str]], how: str, log_path: str) -> TrialResult:
    """Ranks that the others waited for: number, process, and the last thing that each said."""
    if not silent:
        return TrialResult(Outcome.TIMED_OUT, f"all ranks wait for one another: {how}", _SEES_LOG)
    stacks = {one: innermost_calls(one[1], log_path) for one in silent}
    culprit = next((one for one, stack in stacks.items() if not waits_for_others(stack)), silent[0])
    rank, _, doing = culprit
    doing = f" ({doing})" if doing else ""
    where = stacks[culprit]
    hint = "Give it more time with --budget, or fix the hang."
    return TrialResult(Outcome.TIMED_OUT, f"rank {rank} hangs{doing}: {how}", hint, where)


def of_no_meeting(options: Sequence[str], how: str) -> TrialResult:
    """No rank was started, since torchrun's processes on the machines did not meet where ``options`` say."""
    named = dict(zip(options[::2], options[1::2], strict=False))
    return TrialResult(
        Outcome.TIMED_OUT,
        f"the machines did not meet at {named.get('--rdzv-endpoint', 'their endpoint')}: {how}",
        "Name a free port of the first machine that all reach; on the others start `perf-advisor follow` with the same "
        "options.",
    )


def waits_for_others(stack: str) -> bool:
    """Whether the innermost calls of a rank are PyTorch's, waiting for a device or for other ranks."""
    calls = [line for line in stack.splitlines() if line.lstrip().startswith("File ")][:_INNERMOST]
    return any(name in call for call in calls for name in _WAITING_CALLS)


def of_torchrun(exit_code: int | None, folder: Path, log_path: str) -> TrialResult:
    """The reason in an error file of a rank that never spoke, else the last error in the log."""
    for path in sorted(folder.glob("**/error.json"), key=lambda path: path.stat().st_mtime):
        message = json.loads(path.read_text(encoding="utf-8")).get("message", "")
        text = message.get("message", "") if isinstance(message, dict) else str(message)
        if text:
            return TrialResult(Outcome.FAILED, f"rank {path.parent.name}: {text.splitlines()[-1]}", _SEES_LOG)
    log = tail(log_path, _TAIL_BYTES)
    if any(text in log for text in _TAKEN):
        return TrialResult(
            Outcome.FAILED,
            "torchrun could not listen: the port is in use",
            "Name a free one with --rdzv-endpoint HOST:PORT.",
        )
    errors = [line.strip() for line in log.splitlines() if re.match(r"\s*[\w.]*(Error|Exception)\b", line)]
    last = errors[-1] if errors else "its log says no more"
    return TrialResult(Outcome.FAILED, f"torchrun ended with exit code {exit_code}: {last}", _SEES_LOG)


def was_stopped_by_watchdog(log_path: str) -> bool:
    """Whether NCCL ended a rank that waited for another too long."""
    return _WATCHDOG in tail(log_path, _TAIL_BYTES)
