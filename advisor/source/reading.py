"""Find habits in the files of the target and of ``--script``, with file and line. Files are parsed, never run."""

import ast
import sys
import tokenize
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.files.paths import DEMO, is_file, is_library
from advisor.records import Facts, Finding, Mode
from advisor.source.habits import RULES, habits_of

_LARGEST_BYTES = 1_000_000
_LONGEST_LINE = 160
# Recipes whose habits cost time only on a GPU: on a CPU, reading or copying a value waits for nothing.
ON_GPU_ONLY = frozenset(rule.recipe for rule in RULES if rule.on_gpu)
IN_TRAINING_ONLY = frozenset(rule.recipe for rule in RULES if rule.in_training)


@dataclass(frozen=True, slots=True)
class Reading:
    """The findings in one file, or the reason why it could not be read."""

    file: str
    findings: tuple[Finding, ...] = ()
    problem: str = ""


def read_sources(target: str, directory: str, scripts: Iterable[str] = ()) -> tuple[Reading, ...]:
    """Read the target's own file and the scripts, each file once. Paths are relative to ``directory``."""
    of_target, root = target_file(target, directory), Path(directory).resolve()
    named = [Path(directory, script) for script in scripts]
    files = dict.fromkeys(path.resolve() for path in ([of_target] if of_target else []) + named)
    return tuple(read_file(path, str(path.relative_to(root) if path.is_relative_to(root) else path)) for path in files)


def read_file(path: Path, shown: str = "") -> Reading:
    """The findings in a Python file. ``shown`` is the file's name in the findings. Never raises."""
    shown = shown or str(path)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return Reading(shown, problem=f"{shown} was not read: it is larger than {_LARGEST_BYTES // 10**6} MB")
        with tokenize.open(path) as file:  # with the encoding that it declares
            return read_text(file.read(), shown)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return Reading(shown, problem=f"{shown} was not read: it is not text")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Reading(shown, problem=f"{shown} could not be read: {reason}")


def read_text(text: str, shown: str) -> Reading:
    """The findings in Python source. ``shown`` is the file's name in the findings. Never raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        reason = str(getattr(error, "msg", error)).partition("\n")[0] or "it is nested too deeply"
        return Reading(shown, problem=f"{shown} cannot be parsed: {line}{reason}")
    lines, found = text.splitlines(), dict[tuple[int, str], Finding]()
    try:
        for node, finding in habits_of(tree):
            number = node.lineno
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # the last call in a chain
                number = node.func.end_lineno or number
            line = lines[number - 1].strip()[:_LONGEST_LINE] if number <= len(lines) else ""
            found.setdefault((number, finding.recipe), replace(finding, file=shown, line=number, text=line))
    except Exception as error:  # a bug in our rules must not end the session
        return Reading(shown, problem=f"{shown} could not be searched for habits: {type(error).__name__}: {error}")
    return Reading(shown, tuple(sorted(found.values(), key=lambda finding: (finding.line, finding.recipe))))


def target_file(target: str, directory: str) -> Path | None:
    """The file of a target, found without an import; None if it is the demo, a library's or missing."""
    if target == DEMO:  # the user may have a demo.py
        return None
    module = target.rpartition(":")[0] or target
    if module.endswith(".py") or "/" in module:
        path = Path(directory, module)
        return path if is_file(path) else None
    parts = module.split(".")
    for folder in (directory, *sys.path):
        package = Path(folder, *parts, "__init__.py")
        for path in (package, Path(folder, *parts[:-1], f"{parts[-1]}.py")):
            if all(parts) and is_file(path):
                return None if is_library(str(path.resolve())) else path  # the user cannot change a library
    return None


def relevant(findings: Iterable[Finding], facts: Facts) -> tuple[Finding, ...]:
    """The findings that concern the measured loop and cost time on its device."""
    left_out = frozenset() if facts.on_cuda else ON_GPU_ONLY
    left_out |= frozenset() if facts.workload.mode is Mode.TRAIN else IN_TRAINING_ONLY
    return tuple(finding for finding in findings if finding.recipe not in left_out)
