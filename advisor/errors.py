"""Errors that reach the user: one line that says what is wrong, one that says what to do."""

import errno
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of ``perf-advisor``."""

    OK = 0
    BUG = 1
    USAGE = 2
    TARGET = 3
    NOT_WORTH_IT = 4
    INTERRUPTED = 130


class AdvisorError(Exception):
    """An error the user can act on. ``details`` may hold several lines, such as frames of a traceback."""

    exit_code = ExitCode.BUG

    def __init__(self, message: str, hint: str, details: str = "") -> None:
        super().__init__("".join(one if one.isprintable() else ascii(one)[1:-1] for one in message))  # for a terminal
        self.message = message
        self.hint = hint
        self.details = details


class UsageError(AdvisorError):
    """The command line, a config or a settings file is wrong."""

    exit_code = ExitCode.USAGE


class TargetError(AdvisorError):
    """The target could not be loaded or its baseline failed."""

    exit_code = ExitCode.TARGET


class TooSlowError(TargetError):
    """The target's steps take longer than the budget leaves for them."""


class RefusedError(AdvisorError, ValueError):
    """A setting would replace the user's object by one that behaves differently."""

    exit_code = ExitCode.TARGET

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "Leave the setting out for this object, or change what is named.")


# Errors of the system by errno, each with what to do.
_REFUSED = {
    errno.EMFILE: "Allow the process more open files: `ulimit -n 4096`.",
    errno.ENFILE: "Close programs that hold many files, or ask for a higher limit.",
    errno.ENOSPC: "Make room on the disk, or set PERF_ADVISOR_STATE and TMPDIR to folders that have some.",
    errno.EDQUOT: "Make room within your quota, or set PERF_ADVISOR_STATE and TMPDIR to folders elsewhere.",
    errno.EFBIG: "Allow the process larger files: `ulimit -f unlimited`.",
    errno.ENOMEM: "Close programs that take memory, or allow the process more: `ulimit -v unlimited`.",
    errno.EAGAIN: "Allow more processes and threads: `ulimit -u`.",
    errno.EROFS: "Set PERF_ADVISOR_STATE and TMPDIR to folders that can be written.",
    errno.EACCES: "Use files and folders that you may read and enter.",
    errno.ENAMETOOLONG: "Use a shorter name.",
}


def refusal_of(error: BaseException) -> AdvisorError | None:
    """The error for a refusal by the system, such as a full disk; None for another exception."""
    if isinstance(error, MemoryError):
        return UsageError("there is not enough memory for this.", _REFUSED[errno.ENOMEM])
    if isinstance(error, ImportError) and "failed to map segment" in str(error):
        return UsageError(f"a library cannot be loaded: {error}.", _REFUSED[errno.ENOMEM])
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return UsageError("no thread can be started.", _REFUSED[errno.EAGAIN])
    if _is_from_proc(error):
        return UsageError(
            f"the system does not tell of itself: {type(error).__name__} {error}.",
            "Run where /proc is mounted and can be read.",
        )
    hint = _REFUSED.get(error.errno or 0) if isinstance(error, OSError) else None
    return UsageError(f"the system refused: {error}.", hint) if hint else None


def _is_from_proc(error: BaseException) -> bool:
    """Whether a file in /proc could not be read, or psutil could make nothing of it."""
    if isinstance(error, OSError):
        return str(error.filename).startswith("/proc/") and error.errno not in (errno.EMFILE, errno.ENFILE)
    innermost = error.__traceback__
    while innermost and innermost.tb_next:
        innermost = innermost.tb_next
    return innermost is not None and "/psutil/" in innermost.tb_frame.f_code.co_filename
