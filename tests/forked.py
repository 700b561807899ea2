"""Programs in processes of their own that need not import torch: forked from the fork server, as trials are."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from advisor.runner import fork_server

# For a program to end; generous: the machine may be loaded, and the first one waits for the fork server. Seconds.
ENDS_WITHIN_S = 180.0


class Program:
    """A running program with the interface of ``subprocess.Popen`` with pipes."""

    def __init__(self, code: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._written = Path(tempfile.mkdtemp())
        given = code, ["-c", *arguments], str(self._written), str(Path.cwd()), dict(environment or {})
        self._process = fork_server.CONTEXT.Process(target=_run, args=given)
        fork_server.start(self._process)

    def ended(self) -> subprocess.CompletedProcess[str]:
        """Wait for the program's end; return its exit code and its output. Raises TimeoutError."""
        self._process.join(ENDS_WITHIN_S)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"the program did not end within {ENDS_WITHIN_S:.0f} s")
        printed, errors = ((self._written / name).read_text(encoding="utf-8") for name in ("1", "2"))
        shutil.rmtree(self._written)
        return subprocess.CompletedProcess([], self._process.exitcode, printed, errors)


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program as ``python -c`` does, with torch already imported."""
    return Program(code, *arguments).ended()


def _run(code: str, argv: list[str], written: str, folder: str, environment: dict[str, str]) -> None:
    for descriptor in (1, 2):
        file = os.open(f"{written}/{descriptor}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.chdir(folder)
    os.environ |= environment
    sys.argv, tempfile.tempdir = argv, None
    multiprocessing.set_start_method(None, force=True)  # the system's, as in a program of its own
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
