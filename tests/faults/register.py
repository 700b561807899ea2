"""The register of faults: each is provoked for real, on a CPU."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from advisor.cli import main as cli
from advisor.records import Outcome, TargetSpec, TrialResult, TrialSpec
from advisor.runner.trials import Runner

# A session is recorded for 2 s at the latest after a fault; the figure is generous, for loaded machines. Seconds.
SOON_S = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``provoke`` works in an empty folder, which it is given, and fails where the fault is not met."""

    phase: str
    name: str
    provoke: Callable[[Path], object]


FAULTS: list[Fault] = []


def fault(phase: str, name: str) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:
    """Put a function into the register."""

    def register(provoke: Callable[[Path], object]) -> Callable[[Path], object]:
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


def ends_its_trial(result: TrialResult, reason: str, hint: str) -> None:
    """The trial failed, and says in two lines why, and what to do."""
    assert result.outcome is not Outcome.MEASURED
    assert reason in result.reason
    assert hint in result.hint
    assert "\n" not in result.reason + result.hint


def measured(result: TrialResult) -> None:
    """The trial measured all the same."""
    assert result.outcome is Outcome.MEASURED, result.reason
