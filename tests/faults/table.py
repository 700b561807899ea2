"""The table of faults: ``python -m tests.faults`` provokes each and writes README.md beside this file."""

import sys
import tempfile
import time
from pathlib import Path

from advisor.figures.formatting import plain
from advisor.runner.trials import Runner
from faults import inputs, sessions, system, whole
from faults.register import FAULTS, Fault, Met, at_home

README = Path(__file__).with_name("README.md")
SCENARIOS = (inputs, system, whole, sessions)  # importing them fills the register
_LONGEST = 110
HEAD = """# Faults

{count} faults, each provoked for real on a CPU: what the person sees, the seconds until the next thing can be done
(with the trial that the fault is provoked in), and what was lost. `python -m tests.faults` writes this table;
`pytest -m faults` provokes them all, kills sessions at random moments and soaks the runner. Faults of a GPU are in
`tests/gpu/test_faults_gpu.py`.

| phase | fault | what the person sees | s | lost |
| --- | --- | --- | ---: | --- |
"""


def provoked(fault: Fault) -> tuple[Met, float]:
    """How a fault was met, and the seconds that it took. Raises what the fault's checks raise."""
    kept = tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True)
    with kept as name, at_home(Path(name)) as folder:
        started = time.monotonic()
        met = fault.provoke(folder)
        seconds = time.monotonic() - started
    seen = met.seen.replace(f"{Path(name).resolve()}/", "").replace(name, ".")
    return Met(seen, met.lost), seconds


def row(fault: Fault, met: Met, seconds: float) -> str:
    """A line of the table."""
    seen = plain(met.seen)
    seen = seen if len(seen) <= _LONGEST else f"{seen[: _LONGEST - 1]}…"
    cells = (fault.phase, fault.name, seen.replace("|", "\\|").replace("<", "&lt;"), f"{seconds:.1f}", met.lost)
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Provoke every fault and write the table; what is not met is told, and ends with exit code 1."""
    Runner.prepare()
    rows, unmet = [], 0
    for one in FAULTS:
        try:
            rows.append(row(one, *provoked(one)))
            print(rows[-1], end="", flush=True)
        except Exception as error:
            unmet += 1
            print(f"NOT MET: {one.phase}: {one.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    README.write_text(HEAD.format(count=len(rows)) + "".join(rows), encoding="utf-8")
    sys.exit(bool(unmet))
