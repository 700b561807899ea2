"""The request of a session: how it measures, and which files it writes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from advisor.errors import UsageError
from advisor.files.paths import check_target
from advisor.judging.objective import Goal
from advisor.records import ConfigKind, Numerics, Objective, TargetSpec, Value
from advisor.records.trials import WORKLOAD_SUFFIX
from advisor.source.reading import target_file
from advisor.workloads.scripts import is_script

DEFAULT_BUDGET_S = 300.0
DEFAULT_EVAL_STEPS = 100  # steps of training before its score is taken
STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one session."""

    target: TargetSpec
    budget_s: float = DEFAULT_BUDGET_S  # wall seconds for the whole session
    objective: Objective = Objective.THROUGHPUT
    allow: Numerics = Numerics.CLOSE  # the worst numerics class that may enter the stack without the person's consent
    memory_limit_bytes: int | None = None  # limit of peak reserved memory
    latency_limit_ms: float | None = None  # limit of the 95th percentile of single calls, in inference
    evaluate: str = ""  # the function that scores a model
    min_score: float | None = None
    max_drop: float | None = None
    eval_steps: int = DEFAULT_EVAL_STEPS  # steps before the score, if the loop trains
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    recipe_folders: tuple[str, ...] = ()
    gpus: int = 1  # number of GPUs of this machine; 0 for all
    machines: int = 1  # number of machines in trials over several GPUs
    launch: tuple[str, ...] = ()  # torchrun's options
    seed: int = 0
    config_path: str | None = None
    key_map: dict[str, str] = field(default_factory=dict)
    scripts: tuple[str, ...] = ()  # files to read for habits, beside the target's own
    accept: tuple[tuple[str, Value | None], ...] = ()  # accepted recipes, each with the accepted value, or None for all
    command: tuple[str, ...] = ()  # the command line as typed, without probable secrets; empty if there was none

    def continuing(self, past: Request) -> Request:
        """This request, with the past target if it names none, and past values for options left at their defaults."""
        asked = {name: value for name, value in _choices(self).items() if name not in ("target", "command")}
        given = _choices(self.target)
        if not self.target.target:  # keep the target of the past request
            del given["target"], given["directory"]
        return replace(past, target=replace(past.target, **given), **asked)

    def check(self) -> None:
        """Raise UsageError or TargetError for a target that does not exist or a score that cannot be taken."""
        target, name, has_bound = self.target, self.evaluate, (self.min_score, self.max_drop) != (None, None)
        for each in filter(None, (target.target, name)):
            check_target(each, target.directory)
        for bound in (self.min_score, self.max_drop):
            if isinstance(bound, str) or not math.isfinite(bound or 0.0):
                raise UsageError(f"{bound!r} is no number.", "Set min_score and max_drop to numbers such as 0.005.")
        if bool(name) != has_bound:
            raise UsageError("--eval and its bound need each other.", "Write --eval mymodel:evaluate --min-score 0.75.")
        if name and ":" not in name and not name.endswith(WORKLOAD_SUFFIX):
            raise UsageError(f"--eval: {name!r} names no function.", "Write it as mymodel:evaluate.")
        if name and is_script(target.target, target.directory, "build"):
            why = f"--eval scores the model of a build function, and {target.target} is a script."
            raise UsageError(why, f"`perf-advisor init {target.target}` drafts a build function; name that file.")

    @property
    def options(self) -> dict[str, str]:
        """The options that differ from their defaults, as text, by the name of the field."""
        of_target = ("mode", "device", "batch_size", "input_shape")
        chosen = {name: value for name, value in _choices(self.target).items() if name in of_target}
        chosen |= {name: value for name, value in _choices(self).items() if name not in ("target", "command")}
        return {name: _in_words(value) for name, value in chosen.items()}

    @property
    def wants_several(self) -> bool:
        """Whether the session also measures on several GPUs."""
        return self.gpus != 1 or self.machines > 1

    @property
    def goal(self) -> Goal:
        """The session's objective and its limits."""
        limits = (self.memory_limit_bytes, self.allow, self.latency_limit_ms, self.min_score, self.max_drop)
        return Goal(self.objective, *limits)


def _choices(record: Any) -> dict[str, Any]:
    """The fields of a frozen record that are not at their default."""
    usual = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(record)}
    return {name: getattr(record, name) for name in usual if getattr(record, name) != usual[name]}


def _in_words(value: Any) -> str:
    """A value of an option as text. A list's parts are joined by commas, a pair's by an equals sign."""
    if not isinstance(value, tuple | dict):
        return str(value)
    parts = value.items() if isinstance(value, dict) else value
    pairs = (each if isinstance(each, tuple) else (each,) for each in parts)
    return ", ".join("=".join(str(one) for one in pair if one is not None) for pair in pairs)


# --- the files to write -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files that a session is asked to write, by their paths."""

    json_path: str | None = None  # may be ``-``
    export_path: str | None = None
    report_path: str | None = None
    config_path: str | None = None  # the user's own file, patched on export
    key_map: Mapping[str, str] = field(default_factory=dict)  # the entry's dotted path in the config, by setting
    trace_path: str | None = None  # path for the profile's Chrome trace, gzipped
    config_kind: ConfigKind | None = None  # the program that reads the config; None if the config's keys identify it
    verify: bool = True  # apply the export to the target and time it
    own_file: str | None = None  # the target's own file, whose change can be exported as well
    is_script: bool = False  # whether the target is a script, which has no build()
    shows_diff: bool = False  # whether to print the change too

    @property
    def json_to_stdout(self) -> bool:
        """Whether standard output belongs to the JSON report."""
        return self.json_path == STANDARD_OUTPUT

    @property
    def files(self) -> dict[str, str]:
        """The files to write, by the option that names each."""
        paths = (self.json_path, self.export_path, self.report_path, self.trace_path)
        named = zip(("--json", "--export", "--report", "--trace"), paths, strict=True)
        return {option: path for option, path in named if path is not None}


def beside_own_files(outputs: Outputs, request: Request) -> Outputs:
    """The outputs and the target's own file. Raises UsageError if one would replace it or a training script."""
    target, directory = request.target.target, request.target.directory
    of_target = target_file(target, directory)
    own = {os.path.realpath(file) for file in (of_target, *request.scripts) if file}
    for option, text in outputs.files.items():
        if os.path.realpath(text) in own:
            raise UsageError(f"{option}: {text} is the code that is measured.", "Name another file.")
    own_file = str(of_target.resolve()) if of_target else None
    return replace(outputs, own_file=own_file, is_script=is_script(target, directory, "build"))
