"""Errors that reach the user: one line says what is wrong, another says what to do."""

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
    """An error that the user can act on. ``details`` may have several lines (the frames of a traceback)."""

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
    """A setting is refused because it would replace the user's object by one that behaves differently."""

    exit_code = ExitCode.TARGET

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "Leave the setting out for this object, or change what is named.")


# The errno of errors for which the user must make room, raise a limit or give a permission.
_REFUSED = frozenset(
    {
        errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG,
        errno.ENOMEM, errno.EAGAIN, errno.EROFS, errno.EACCES, errno.ENAMETOOLONG,
    }
)  # fmt: skip


def refusal_of(error: BaseException) -> AdvisorError | None:
    """The error to show if the system refused something (the disk is full); None for another exception."""
    if not isinstance(error, MemoryError) and not (isinstance(error, OSError) and error.errno in _REFUSED):
        return None
    return UsageError(
        f"the system refused: {str(error) or 'there is not enough memory'}.",
        "Look for room on the disk and in memory, and for files that may not be read or written; `ulimit -a` shows the "
        "limits of a process. PERF_ADVISOR_STATE and TMPDIR may name other folders.",
    )
