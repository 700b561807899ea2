"""What tests of trial processes share: specs, targets whose building does something, and the end of a process."""

import textwrap
import time

import psutil
from planted import TINY_TARGET

from advisor.records import TargetSpec, TrialSpec

SOON_S = 30.0  # generous: the machine may be loaded
IMPORTED_S = 120.0  # as generous, where torch is imported first
# The body of a target that hangs with a child of its own.
SLEEPING = """
child = subprocess.Popen(["sleep", "600"])
with open({path!r}, "w") as file:
    file.write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(600)
"""


def spec_of(folder, file, *, device="cpu", mode=None, **changes):
    options = {
        "trial_id": "t",
        "target": TargetSpec(file, str(folder), device=device, mode=mode),
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


def run(runner, spec):
    """The result of a trial, whose messages nobody hears."""
    return runner.run(spec, lambda message: None)


def until(met, within_s=SOON_S):
    """Call ``met`` until it returns something true or the time is over, and return its last value."""
    deadline = time.monotonic() + within_s
    while not (found := met()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def gone(pid):
    """Whether a process has ended, within a while; one that nobody has waited for yet counts as ended."""

    def has_ended():
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return until(has_ended)


def appears(path):
    """The words in a file that another process writes, once they are there."""
    words = until(lambda: path.exists() and path.read_text().split(), IMPORTED_S)
    assert words, f"{path} did not appear"
    return words
