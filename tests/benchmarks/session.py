"""A session of perf-advisor's, run as a user runs it: what it found, and when, by its report and its journal."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from catalogue import Workload
from lanes import run_command

from advisor.recipe.catalog import load_catalog

# Seconds that a session may take beyond its budget before it is ended: a busy machine is not a session that hangs.
PATIENCE_S = 90.0


def run_session(
    workload: Workload,
    budget_s: int,
    files: Path,
    *,
    prefix: Sequence[str],
    environment: Mapping[str, str],
    state: Path,
) -> dict[str, Any]:
    """Run a session. Its report, settings, journal and log are written beside ``files``.

    The session verifies none of its files: the benchmark does. Returns seconds since the start of the command, the
    settings, ``reported`` (the combination's speed-up with the ends of its 95 % interval), and ``outside_share``, the
    share of the session that is neither measuring, warming up nor compiling.

    Raises FailedError when the command fails or goes on long after its budget.
    """
    report, settings = files.with_suffix(".report.json"), files.with_suffix(".yaml")
    command = [*prefix, sys.executable, "-m", "advisor", workload.target, "--headless", "--budget", f"{budget_s}s"]
    command += ["--skip", "batch_size", "--no-verify"]
    command += ["--export", str(settings.resolve()), "--json", str(report.resolve())]
    if not workload.trains:
        command += ["--mode", "infer", "--batch-size", str(workload.batch_size)]
    # The safe path keeps the checkout's own folder from hiding the installed package.
    environment = {**environment, "PERF_ADVISOR_STATE": str(state.resolve()), "PYTHONSAFEPATH": "1"}
    before = set(state.glob("sessions/*.jsonl"))
    started, started_at = time.perf_counter(), time.time()
    run_command(command, environment, files.with_suffix(".perf-advisor.log"), budget_s + PATIENCE_S)
    wall_s = time.perf_counter() - started
    journal = max(set(state.glob("sessions/*.jsonl")) - before)
    files.with_suffix(".journal.jsonl").write_bytes(journal.read_bytes())
    stack = json.loads(report.read_text(encoding="utf-8")).get("stack") or {}
    reported = [stack.get(name) for name in ("speedup", "ci_low", "ci_high")]
    return {
        "wall_s": wall_s,
        "budget_s": budget_s,
        "settings": yaml.safe_load(settings.read_text(encoding="utf-8")) or {},
        "reported": None if None in reported else reported,
        **_from_journal(journal, started_at),
    }


def _from_journal(journal: Path, started_at: float) -> dict[str, float | None]:
    """When the first combinations were known, and the share of the session outside of measuring."""
    events = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    stacks = [
        (event["at"] - started_at, event["data"]["record"]["settings"])
        for event in events
        if event.get("event") == "StackMeasured" and event["data"]["record"]["result"]["outcome"] == "measured"
    ]
    spent = next((event["data"].get("spent") for event in events if event.get("event") == "SessionFinished"), None)
    outside = 1 - (spent["measuring_s"] + spent["warming_up_s"]) / spent["session_s"] if spent else None
    return {
        "first_stack_s": min((at for at, settings in stacks if settings), default=None),
        "first_compiled_s": min((at for at, settings in stacks if load_catalog().compiles(settings)), default=None),
        "outside_share": None if outside is None else max(0.0, outside),
    }
