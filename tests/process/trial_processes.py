"""What tests of trial processes share: specs, targets whose building does something, and the end of a process."""

from __future__ import annotations

import textwrap
import time

import psutil
from planted import TINY_TARGET

from advisor.records import TargetSpec, TrialSpec

SOON_S = 30.0  # generous: the machine may be loaded


def spec_of(folder, file, **changes):
    options = {
        "trial_id": "t",
        "target": TargetSpec(file, str(folder), device="cpu"),
        "settings": {},
        "measure_s": 0.1,
        "warmup_limit_s": 0.2,
        "timeout_s": 120.0,
        "log_path": str(folder / "logs" / "trial.log"),
    }
    return TrialSpec(**{**options, **changes})


def building(body):
    """A target whose ``build`` runs this body first."""
    return "import ctypes, os, subprocess, sys, time\n" + TINY_TARGET.replace(
        "def build():\n", f"def build():\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
    )


def gone(pid):
    """Whether a process has ended, within a while; one that nobody has waited for yet counts as ended."""
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False
