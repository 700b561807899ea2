"""The register of faults: each is provoked for real, and says what the person sees and what was lost."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sample_session import sample_history, sample_request

from advisor.cli import main as cli
from advisor.experiment.past.journal import Journal
from advisor.records import Outcome, TargetSpec, TrialResult, TrialSpec
from advisor.runner.trials import Runner

NOTHING = "nothing"
TRIAL = "the trial in hand"
# A session is recorded for 2 s at the latest after a fault; the figure is generous, for loaded machines. Seconds.
SOON_S = 60.0


@dataclass(frozen=True, slots=True)
class Met:
    """How a fault was met: what the person sees, and what was lost."""

    seen: str
    lost: str = NOTHING


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``provoke`` works in an empty folder, which it is given, and fails where the fault is not met."""

    phase: str
    name: str
    provoke: Callable[[Path], Met]


FAULTS: list[Fault] = []


def fault(phase: str, name: str) -> Callable[[Callable[[Path], Met]], Callable[[Path], Met]]:
    """Put a function into the register."""

    def register(provoke: Callable[[Path], Met]) -> Callable[[Path], Met]:
        FAULTS.append(Fault(phase, name, provoke))
        return provoke

    return register


@contextlib.contextmanager
def at_home(folder: Path) -> Iterator[Path]:
    """Work in an empty folder, with a state folder of its own."""
    before, state = Path.cwd(), os.environ.get("PERF_ADVISOR_STATE")
    os.chdir(folder)
    os.environ["PERF_ADVISOR_STATE"] = str(folder / "state")
    try:
        yield folder
    finally:
        os.chdir(before)
        if state is None:
            del os.environ["PERF_ADVISOR_STATE"]
        else:
            os.environ["PERF_ADVISOR_STATE"] = state


def command(*arguments: str, code: int = 2) -> str:
    """What ``perf-advisor`` says on standard error: two lines where it refuses."""
    with contextlib.redirect_stderr(io.StringIO()) as error, contextlib.redirect_stdout(io.StringIO()):
        ended = cli.main(list(arguments))
    text = error.getvalue()
    assert ended == code, text
    assert "Traceback" not in text
    assert code != 2 or len(text.splitlines()) == 2, text
    return text.splitlines()[0].removeprefix("perf-advisor: ") if text else ""


def trial(folder: Path, text: str | bytes, *, name: str = "target.py", timeout_s: float = SOON_S) -> TrialResult:
    """The result of one trial of a target's text."""
    content = text.encode() if isinstance(text, str) else text
    (folder / name).write_bytes(content)
    return run(folder, name, timeout_s=timeout_s)


def run(folder: Path, name: str, *, timeout_s: float = SOON_S) -> TrialResult:
    """The result of one trial of a file."""
    target = TargetSpec(name, str(folder), device="cpu")
    log = str(folder / "trial.log")
    spec = TrialSpec("t", target, {}, measure_s=0.05, warmup_limit_s=0.1, timeout_s=timeout_s, log_path=log)
    return Runner().run(spec, lambda message: None)


def ends_its_trial(result: TrialResult) -> Met:
    """The trial failed, and says why in one line."""
    assert result.outcome is not Outcome.MEASURED
    assert result.reason
    assert "\n" not in result.reason
    return Met(result.reason, TRIAL)


def measured(result: TrialResult, seen: str = "nothing: it is measured") -> Met:
    """The trial measured all the same."""
    assert result.outcome is Outcome.MEASURED, result.reason
    return Met(seen)


def recorded() -> Path:
    """The journal of a whole session."""
    journal = Journal.create(sample_request())
    for event in sample_history():
        journal.record(event)
    journal.close()
    return journal.path
