"""Errors that reach the user: one line that says what is wrong, one that says what to do."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What ``perf-advisor`` returns to the shell."""

    OK = 0
    BUG = 1
    USAGE = 2
    TARGET = 3
    INTERRUPTED = 130


class AdvisorError(Exception):
    """An error the user can act on. ``details`` may hold several lines, such as frames of a traceback."""

    exit_code = ExitCode.BUG

    def __init__(self, message: str, hint: str, details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details


class UsageError(AdvisorError):
    """The command line, a config or a settings file is wrong."""

    exit_code = ExitCode.USAGE


class TargetError(AdvisorError):
    """The target could not be loaded or its baseline failed."""

    exit_code = ExitCode.TARGET


class RefusedError(AdvisorError, ValueError):
    """A setting that would replace an object of the user's by one that does something else."""

    exit_code = ExitCode.TARGET

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "Leave the setting out for this object, or change what is named.")
