"""Faults of the command's own streams: a report is written wherever they lead."""

import os
import subprocess
import sys
from pathlib import Path

from sample_session import journaled, sample_history

from faults.register import SOON_S, fault

STREAMS = {
    "standard output on /dev/full": (">/dev/full", 2),
    "standard error on /dev/full": ("2>/dev/full", 0),
    "standard output closed": (">&-", 0),
    "all standard streams closed": ("<&- >&- 2>&-", 0),
}


def _redirected(folder: Path, redirection: str, code: int) -> None:
    """A report of a recorded session with some of its streams elsewhere: its files are written all the same."""
    journaled(sample_history())
    line = [sys.executable, "-m", "advisor", "report", "--json", "out.json", "--report", "out.md"]
    shell = ["bash", "-c", f'"$@" {redirection}', "bash", *line]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(shell, env=variables, capture_output=True, text=True, timeout=SOON_S, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert all((folder / name).stat().st_size for name in ("out.json", "out.md"))
    refused = [line for line in done.stderr.splitlines() if line.startswith("perf-advisor: ")]
    assert len(refused) == (1 if code else 0), done.stderr


for _name, (_redirection, _code) in STREAMS.items():
    fault("disk", _name)(lambda folder, to=_redirection, code=_code: _redirected(folder, to, code))
