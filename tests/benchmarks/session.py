"""A session of perf-advisor's, run as a user runs it, and the stacks that it knew at some moments, from its journal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from catalogue import ROOT, Workload
from processes import NVML_CHECK, FailedError, end_children

# Seconds that a session may take beyond its budget before it is ended: a busy machine is not a session that hangs.
PATIENCE_S = 90.0
# Seconds after a moment within which a session's end still counts as that moment: sessions may overrun by 2 s.
GRACE_S = 3.0

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Session:
    """The outcome of a session. Times are seconds since the start of the command.

    ``reported`` is the speed-up of the final stack with the ends of its 95 % interval, ``reported_ms`` its step time,
    ``reported_before_ms`` the baseline's.
    ``stacks`` are the best known settings, each with the time from which they were known. ``outside_share`` is the
    share of the session that is neither measuring, warming up nor compiling. ``no_python_file`` says why the session
    left no Python file.
    """

    wall_s: float
    budget_s: int
    settings: Settings
    reported: tuple[float, float, float] | None = None
    stacks: tuple[tuple[float, Settings], ...] = ()
    outside_share: float | None = None
    reported_ms: float | None = None
    reported_before_ms: float | None = None
    no_python_file: str = ""
    first_stack_s: float | None = field(init=False)
    first_compiled_s: float | None = field(init=False)

    def __post_init__(self) -> None:
        firsts = [at for at, settings in self.stacks if settings]
        compiled = [at for at, settings in self.stacks if compiles(settings)]
        object.__setattr__(self, "first_stack_s", min(firsts, default=None))
        object.__setattr__(self, "first_compiled_s", min(compiled, default=None))

    def known_at(self, moment_s: float) -> Settings | None:
        """The best known settings at a moment, empty before there are any; None beyond the session's budget."""
        if moment_s > self.budget_s:
            return None
        if self.wall_s <= moment_s + GRACE_S:
            return self.settings
        known = [settings for at, settings in self.stacks if at <= moment_s]
        return known[-1] if known else {}


def compiles(settings: Mapping[str, Any]) -> bool:
    """Whether these settings compile anything."""
    off = (None, False, "none")
    return any(key.startswith("compile.") and value not in off for key, value in settings.items())


def run_session(workload: Workload, budget_s: int, files: Path, environment: Mapping[str, str], state: Path) -> Session:
    """Run a session; its report, settings, Python file, journal and log are written beside ``files``.

    The session verifies none of its files: the benchmark does.

    Raises FailedError when the command fails or goes on long after its budget.
    """
    report, settings = files.with_suffix(".report.json"), files.with_suffix(".yaml")
    log = files.with_suffix(".perf-advisor.log")
    command = [sys.executable, "-m", "advisor", workload.target, "--headless", "--budget", f"{budget_s}s"]
    command += ["--skip", "batch_size", "--no-verify"]
    command += ["--export", str(settings.resolve()), "--json", str(report.resolve())]
    if not workload.trains:
        command += ["--mode", "infer", "--batch-size", str(workload.batch_size)]
    # The safe path keeps the checkout's own folder from hiding the installed package.
    environment = {**os.environ, **environment, "PERF_ADVISOR_STATE": str(state.resolve()), "PYTHONSAFEPATH": "1"}
    environment.pop(NVML_CHECK, None)
    before = set(state.glob("sessions/*.jsonl"))
    started, started_at = time.perf_counter(), time.time()
    _run(command, environment, log, budget_s + PATIENCE_S)
    wall_s = time.perf_counter() - started
    journals = sorted(set(state.glob("sessions/*.jsonl")) - before)
    events = events_of(journals[-1]) if journals else []
    if journals:
        files.with_suffix(".journal.jsonl").write_bytes(journals[-1].read_bytes())
    return session_of(
        events,
        started_at=started_at,
        wall_s=wall_s,
        budget_s=budget_s,
        settings=yaml.safe_load(settings.read_text(encoding="utf-8")) or {},
        stack=json.loads(report.read_text(encoding="utf-8")).get("stack") or {},
        no_python_file=_write_python_file(files.with_suffix(".py"), environment),
    )


def _write_python_file(file: Path, environment: Mapping[str, str]) -> str:
    """Export the latest session of the state folder as a Python file; return why there is none, or an empty text."""
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "advisor", "export", "--export", str(file.resolve())]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return "" if file.exists() else f"no Python file: {(ran.stderr.strip() or 'it said nothing').splitlines()[0]}"


def session_of(
    events: Sequence[Mapping[str, Any]],
    *,
    started_at: float,
    wall_s: float,
    budget_s: int,
    settings: Settings,
    stack: Mapping[str, Any],
    no_python_file: str = "",
) -> Session:
    """The outcome from a journal's events, the exported settings, and the stack of the JSON report."""
    reported = tuple(stack.get(name) for name in ("speedup", "ci_low", "ci_high"))
    finished = [event["data"] for event in events if event["event"] == "SessionFinished"]
    return Session(
        wall_s=wall_s,
        budget_s=budget_s,
        settings=settings,
        reported=None if None in reported else reported,  # type: ignore[arg-type]
        stacks=tuple(_stacks(events, started_at)),
        outside_share=_outside_share(finished[-1].get("spent")) if finished else None,
        reported_ms=stack.get("step_ms") if settings else None,
        reported_before_ms=stack.get("baseline_step_ms"),
        no_python_file=no_python_file,
    )


def events_of(journal: Path) -> list[dict[str, Any]]:
    """The events of a journal; a last line that was cut short is left out."""
    events = []
    for line in journal.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if "event" in entry:
                events.append(entry)
    return events


def _stacks(events: Sequence[Mapping[str, Any]], started_at: float) -> list[tuple[float, Settings]]:
    """The stacks that were measured and became the best known, each with its time."""
    return [
        (event["at"] - started_at, event["data"]["record"]["settings"])
        for event in events
        if event["event"] == "StackMeasured" and event["data"]["record"]["result"]["outcome"] == "measured"
    ]


def _outside_share(spent: Mapping[str, float] | None) -> float | None:
    if not spent or not spent["session_s"]:
        return None
    return max(0.0, 1 - (spent["measuring_s"] + spent["warming_up_s"]) / spent["session_s"])


def _run(command: Sequence[str], environment: Mapping[str, str], log: Path, limit_s: float) -> None:
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # ends as for a user's Ctrl-C, with its trials
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            raise FailedError(f"the session took longer than {limit_s:.0f} s, see {log.name}") from None
        finally:
            end_children(process.pid)
            process.kill()
            process.wait()
    if code:
        raise FailedError(f"the session ended with exit code {code}, see {log.name}: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
