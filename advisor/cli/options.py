"""All options of the command line, declared once by topic, for the parser and the help.

An option's ``dest`` is the field of a record (``parser.given``). Functions that read values raise UsageError.
"""

import contextlib
import math
import re
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from advisor.errors import UsageError
from advisor.experiment.request import DEFAULT_BUDGET_S
from advisor.export.formats import formats_of
from advisor.figures.options import alternatives, choice_of, count_of, device_of, names_of, seconds_of
from advisor.files.paths import is_file, is_folder
from advisor.records import ConfigKind, Mode, Numerics, Objective, Value

_BYTES = {"b": "1"} | {
    letter + suffix: str(base**power)
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def quantity(
    noun: str,
    units: Mapping[str, str],
    hint: str,
    kind: Callable[[float], float] = float,
    *,
    least: float = sys.float_info.min,
    most: float = math.inf,
) -> Callable[[str], float]:
    """Return a parser for a number from ``least`` to ``most`` with one of these units. The parser raises UsageError."""

    def parse_quantity(text: str) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z%]*)", text.strip().lower(), re.ASCII)
        unit = units.get(match[2]) if match else None
        amount = float(Decimal(match[1]) * Decimal(unit)) if match and unit else 0.0
        if not least <= amount <= most or math.isinf(amount):
            raise UsageError(f"{text!r} is not a {noun}.", hint)
        return kind(amount)

    return parse_quantity


share_of = quantity("share", {"%": "0.01", "": "1"}, "Write one above 0 and up to 100%, such as 1% or 0.01.", most=1.0)
factor_of = quantity("factor", {"x": "1", "": "1"}, "Give a number above 0, such as 0.95 or 1.2.")
milliseconds_of = quantity("latency", {"ms": "1", "s": "1000"}, "Write it with its unit, such as 20ms or 1.5s.")
bytes_of = quantity("size", _BYTES, "Write a number and its unit, such as 16GiB, 16GB or 800MiB.", int, least=1.0)


def score_of(text: str) -> float:
    """Read a positive or negative number. Raises UsageError for anything else."""
    with contextlib.suppress(ValueError):
        if math.isfinite(score := float(text)):
            return score
    raise UsageError(f"{text!r} is not a score.", "Give a number, such as 0.75 or -2.5.")


def budget_of(text: str) -> float:
    """Read a session's budget in seconds. Raises UsageError for a small number without a unit (seconds or minutes?)."""
    if re.fullmatch(r"[1-9](\.\d+)?", text.strip(), re.ASCII):
        raise UsageError(f"{text!r} may be seconds or minutes.", f"Write the unit, as in {text.strip()}m.")
    return seconds_of(text)


def shape_of(text: str) -> tuple[int, ...]:
    """Read the sizes in ``64x3x224x224``. Raises UsageError if one is not a positive whole number."""
    parts = re.split(r"[x,]", text.strip().lower())
    if not all(re.fullmatch(r"0*[1-9]\d{0,17}", part, re.ASCII) for part in parts):
        raise UsageError(f"{text!r} is not a shape.", "Write the batch size first, as in 64x3x224x224.")
    return tuple(int(part) for part in parts)


def accepted_of(text: str) -> list[tuple[str, Value | None]]:
    """Read recipes, each with its value or None, from ``batch_size=64,half_weights``. Raises UsageError."""
    pairs: list[tuple[str, Value | None]] = []
    for name in names_of(text):
        recipe, equals, value = (part.strip() for part in name.partition("="))
        if not recipe or (equals and not value):
            raise UsageError(f"{name!r} accepts nothing.", "Write ids, with a value or without: batch_size=64,compile.")
        whole = int(value) if re.fullmatch(r"-?\d{1,18}", value, re.ASCII) else value
        pairs.append((recipe, {"true": True, "false": False, "": None}.get(value, whole)))
    return pairs


def key_map_of(text: str) -> list[tuple[str, str]]:
    """Read settings and their paths in a config from ``precision.autocast=trainer.precision,…``. Raises UsageError."""
    pairs = [tuple(part.strip() for part in item.partition("=")[::2]) for item in text.split(",")]
    if not all(key and path for key, path in pairs):
        hint = "Write --map KEY=PATH, as in precision.autocast=trainer.precision."
        raise UsageError(f"{text!r} maps no setting.", hint)
    return [(key, path) for key, path in pairs]


def existing(is_there: Callable[[str], bool], problem: str, hint: str) -> Callable[[str], str]:
    """Return a parser that makes an existing path absolute. The parser raises UsageError for other paths."""

    def parse_path(text: str) -> str:
        if not is_there(text):
            raise UsageError(problem.format(text), hint)
        return str(Path(text).resolve())

    return parse_path


folder_of = existing(is_folder, "the folder {} does not exist.", "Name a folder of recipe files (.py).")
script_of = existing(is_file, "there is no file {}.", "Name the script that trains, a .py file.")


def gpus_of(text: str) -> int:
    """Read the number of GPUs to measure on; 0 means all. Raises UsageError for anything else."""
    hint = "Write one such as 2, or all; --device cpu uses none."
    return 0 if text.strip().lower() == "all" else count_of(text, hint)


# Options by name, each with its arguments for ``add_argument``; the function under ``type`` reads the value.
# An option that is not given is None, because the records have the defaults.
Options = Mapping[str, Mapping[str, Any]]


def _flag(about: str, **more: Any) -> dict[str, Any]:
    return {"action": "store_true", "default": None, "help": about, **more}


def _value(metavar: str, about: str, read: Callable[[str], Any] = str, **more: Any) -> dict[str, Any]:
    """An option with a value. With the action ``extend`` (for lists) or ``append`` it may be given several times."""
    return {"metavar": metavar, "help": about, "type": read, **more}


def _endings(option: str) -> str:
    return alternatives([suffix for each in formats_of(option) for suffix in each.suffixes])


_EXPORTS = alternatives([each.brief for each in formats_of("--export")])
_KINDS, _GOALS = (alternatives([each.value for each in kind]) for kind in (ConfigKind, Objective))

INPUTS: Options = {
    "--mode": _value("MODE", "train or infer", choice_of(Mode)),
    "--batch-size": _value("N", "another batch size than the target's", count_of),
    "--input": _value("SHAPE", "the input's shape, such as 64x3x224x224", shape_of, dest="input_shape"),
    "--device": _value("DEVICE", "auto, cpu, cuda or cuda:N", device_of),
}
RENDEZVOUS: Options = {
    "--nnodes": _value("N", "machines that take part, with as many GPUs each", count_of, dest="machines", default=1),
    "--rdzv-endpoint": _value("HOST:PORT", "where they meet: a port of the first machine"),
    "--rdzv-backend": _value("NAME", "how they meet: c10d (the default), etcd", default="c10d"),
}
_TARGETS: Options = {
    "--config": _value("FILE", "your YAML, JSON or TOML config, given to build(config)", dest="config_path"),
    **INPUTS,
    "--gpus": _value("N", "GPUs to train on, or all: DDP, sharding and others", gpus_of),
    **RENDEZVOUS,
    "--script": _value("FILE", "a script to read for habits, not to run", script_of, action="append", dest="scripts"),
}
_GOAL: Options = {
    "--objective": _value("GOAL", f"{_GOALS}; throughput if left out", choice_of(Objective)),
    "--memory-limit": _value("SIZE", "the largest permitted peak, such as 16GiB", bytes_of, dest="memory_limit_bytes"),
    "--latency-limit": _value("TIME", "largest p95 of a call, such as 20ms", milliseconds_of, dest="latency_limit_ms"),
    "--only": _value("ID,…", "try these recipes and no others", names_of, action="extend"),
    "--skip": _value("ID,…", "leave these recipes out", names_of, action="extend"),
    "--recipes": _value("DIR", "more recipes, from this folder", folder_of, action="append", dest="recipe_folders"),
    "--allow": _value("CLASS", "how far results may change unasked: exact, close or changed", choice_of(Numerics)),
    "--accept": _value("ID[=VALUE],…", "use these recipes, even if they change results", accepted_of, action="extend"),
    "--eval": _value("FUNCTION", "gives a model's score: mymodel:evaluate; changed results need one", dest="evaluate"),
    "--min-score": _value("SCORE", "with --eval: the lowest score that is good enough", score_of),
    "--max-drop": _value("SHARE", "with --eval: the largest drop below your own score: 0.5%% or 0.005", share_of),
    "--steps": _value("N", "of a training: 500 for a loss curve, 100 before a score", count_of, dest="eval_steps"),
}
_TIME: Options = {
    "--budget": _value("TIME", f"90s, {DEFAULT_BUDGET_S / 60:g}m (default; demo: 90s), 1h", budget_of, dest="budget_s"),
    "--resume": _value("SESSION", "go on with this session, or the latest", nargs="?", const=""),
}
REPORTS: Options = {
    "--report": _value("FILE", f"write the report, {_endings('--report')}", dest="report_path"),
    "--trace": _value("FILE", f"write the profile's trace, {_endings('--trace')}", dest="trace_path"),
    "--json": _value("FILE|-", "write the report as JSON; - is standard output, without the app", dest="json_path"),
}
_FILES: Options = {
    "--export": _value("FILE", f"write the settings that won: {_EXPORTS}", dest="export_path"),
    "--force": _flag("replace a file that may be your own, or has the settings of another target"),
    "--diff": _flag("print the change of your own file, or of your config", dest="shows_diff"),
    "--no-verify": _flag("do not time a loop with the exported file (up to 60 s)", dest="verify", action="store_false"),
    "--map": _value("KEY=PATH,…", "where your config holds a setting", key_map_of, action="extend", dest="key_map"),
    "--config-kind": _value("KIND", f"the framework of the config, if not recognised: {_KINDS}", choice_of(ConfigKind)),
    **REPORTS,
}
# The options of a session by topic of the help; each topic has a title and a text.
TOPICS: Mapping[str, tuple[str, str, Options]] = {
    "targets": (
        "what is measured",
        "A target is a training script as it is, a function build() that returns a model and its data, or a model by "
        "its name. The arguments after -- go to the target.",
        _TARGETS,
    ),
    "goals": ("what counts as better", "More samples per second; what changes results needs --accept.", _GOAL),
    "time": ("how long it takes", "The budget is wall time for the whole session. What was measured is kept.", _TIME),
    "files": ("what is written", "Settings, your script or config changed, plain PyTorch, and reports.", _FILES),
    "ci": (
        "in continuous integration and from programs",
        "Without a terminal there is no app. The exit code is 0 when done, 2 for a mistake on the command line, 3 when "
        "the target cannot be measured, 4 when `check` finds settings no longer worth it, 130 when interrupted.",
        {"--headless": _flag("no app; the default when this is no terminal")},
    ),
}
OPTIONS: Options = {
    **{name: arguments for *_, options in TOPICS.values() for name, arguments in options.items()},
    # Options of other commands. Those without dashes are positional arguments.
    "session": {"metavar": "SESSION", "nargs": "?", "default": "", "help": "its id; default: the latest"},
    "settings": {"metavar": "SETTINGS", "help": "the file that --export wrote, as in tuned.yaml"},
    "target": {"metavar": "TARGET", "help": "what it is for, as in mymodel:build"},
    "--keep": _value("N", "delete all but the latest N", count_of),
    "--min-speedup": _value("FACTOR", "what is worth it; 1.0 if left out", factor_of, default=1.0),
    "--seeds": _value("N", "trainings of each kind; 3 if left out", count_of, default=3),
    "--output": _value("FILE", "the file to write (build_SCRIPT.py if left out)"),
}
