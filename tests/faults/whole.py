"""Faults that need a whole command in a process of its own: names, limits, folders, and a baseline that is killed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from planted import TINY_TARGET
from trial_processes import building as in_build

from faults.register import SOON_S, fault

# Enough for the baseline, also on a loaded machine; nothing is tried after it.
_SHORTEST = ("--budget", "2s", "--only", "zero_grad", "--no-verify", "--device", "cpu", "--headless")


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"


def _command(
    folder: Path,
    target: str,
    *,
    code: int = 0,
    environment: Mapping[str, str] | None = None,
    limits: Mapping[int, int] | None = None,
) -> str:
    """What a whole command prints on standard error."""
    line = [sys.executable, "-m", "advisor", target, *_SHORTEST]
    home = {
        "PERF_ADVISOR_STATE": str(folder / "state"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",  # two would wait for each other on a loaded machine
    }

    def limit() -> None:
        for kind, most in (limits or {}).items():
            resource.setrlimit(kind, (most, most))

    done = subprocess.run(
        line,
        cwd=folder,
        env={**os.environ, **home, **(environment or {})},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=2 * SOON_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "a bug" not in done.stderr
    return done.stderr


def _refusal(said: str) -> None:
    """One line says what is wrong, and the next one what to do."""
    lines = said.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("perf-advisor: ")]
    assert len(lines[place]) > len("perf-advisor: "), said
    assert lines[place + 1].strip(), said


def _named(folder: Path, name: str, code: int) -> None:
    (folder / name).write_text(TINY_TARGET)
    _refusal(_command(folder, name, code=code))


fault("command line", "a target called torch.py")(lambda folder: _named(folder, "torch.py", 3))


def _limited(folder: Path, kind: int, most: int) -> None:
    (folder / "target.py").write_text(TINY_TARGET)
    _refusal(_command(folder, "target.py", code=3, limits={kind: most}))


fault("command line", "no descriptors left")(lambda folder: _limited(folder, resource.RLIMIT_NOFILE, 12))
fault("command line", "no address space left")(lambda folder: _limited(folder, resource.RLIMIT_AS, 10**9))
fault("command line", "no processor time left")(lambda folder: _limited(folder, resource.RLIMIT_CPU, 2))


def _measures(folder: Path, **environment: str) -> None:
    (folder / "target.py").write_text(TINY_TARGET)
    assert "baseline: " in _command(folder, "target.py", environment=environment)


fault("command line", "PYTHONOPTIMIZE=2")(lambda folder: _measures(folder, PYTHONOPTIMIZE="2"))


@fault("disk", "a folder of temporary files with a long path")
def _(folder: Path) -> None:
    long = folder / ("x" * 100)
    long.mkdir()
    _measures(folder, TMPDIR=str(long))


@fault("processes", "a baseline that is killed once")
def _(folder: Path) -> None:
    kill = "import os\nif not os.path.exists('killed') and os.getppid() != 1:\n    open('killed', 'w').close()"
    (folder / "target.py").write_text(in_build(f"{kill}\n    os.kill(os.getpid(), 9)"))
    assert "baseline: " in _command(folder, "target.py")


@fault("processes", "a child of a DataLoader's worker")
def _(folder: Path) -> None:
    start = "import subprocess\n    made = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    note = f"    open({str(folder / 'pid')!r}, 'w').write(str(made.pid))\n"
    loader = f"\ndef worker(number):\n    {start}{note}\n"
    data = "[(torch.randn(16), torch.tensor(0)) for _ in range(64)]"
    made = f"torch.utils.data.DataLoader({data}, batch_size=8, num_workers=1, worker_init_fn=worker)"
    text = TINY_TARGET.replace("torch.randn(8, 16), torch.randint(4, (8,))", made)
    assert text != TINY_TARGET
    (folder / "target.py").write_text(text + loader)
    assert "baseline: " in _command(folder, "target.py")
    assert "\nState:\tZ" in _status(int((folder / "pid").read_text()))
