"""Reading the user's source for habits, with file and line. It is parsed, never imported and never run.

What is read is the file of the target and the files given with ``--script``, Python or notebooks. A file that cannot
be read is a sentence, never an error.
"""

import ast
import json
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

from advisor.files.paths import DEMO, is_file, is_library
from advisor.records import Facts, Finding, LoaderFacts, Mode, Phase, Profile
from advisor.source.habits import habits_of
from advisor.source.program import TooMuchError

_LARGEST_BYTES = 1_000_000
_LONGEST_LINE = 160
_PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun")


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading one file: its findings, or why it could not be read."""

    file: str
    findings: tuple[Finding, ...] = ()
    problem: str = ""


def read_sources(target: str, directory: str, scripts: Iterable[str] = ()) -> tuple[Reading, ...]:
    """The readings of the target's own file and of scripts, each file once. Paths are relative to ``directory``."""
    of_target = target_file(target, directory)
    named = [Path(directory, script) for script in scripts]
    files = dict.fromkeys(path.resolve() for path in ([of_target] if of_target else []) + named)
    return tuple(read_file(path, _shown(path, directory)) for path in files)


def read_file(path: Path, shown: str = "") -> Reading:
    """The findings of a Python file or a notebook. ``shown`` is its name in the findings. Never raises."""
    shown = shown or str(path)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return Reading(shown, problem=f"{shown} is larger than {_LARGEST_BYTES // 10**6} MB, so it was not read")
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return Reading(shown, problem=f"{shown} could not be read: {reason}")
    if path.suffix == ".ipynb":
        return _read_notebook(content, shown)
    try:
        text = content.decode(tokenize.detect_encoding(BytesIO(content).readline)[0])
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return Reading(shown, problem=f"{shown} is not text, so it was not read for habits")
    return _read_text(text, shown)


def target_file(target: str, directory: str) -> Path | None:
    """The file of a target, found without importing: None for a target of our own, of a library, or of nowhere."""
    if target == DEMO:  # there may be a demo.py of the user's
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
                return None if is_library(str(path.resolve())) else path  # those habits are not the user's to mend
    return None


def _shown(path: Path, directory: str) -> str:
    """A path as the person would write it: from the working directory where it lies in there."""
    root = Path(directory).resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


# --- text -----------------------------------------------------------------------------------------------------


def _read_text(text: str, shown: str) -> Reading:
    tree = _parsed(text)
    if isinstance(tree, str):
        return Reading(shown, problem=f"{shown} cannot be parsed: {tree}")
    return _judged(tree, text, shown)


def _judged(tree: ast.Module, text: str, shown: str) -> Reading:
    try:
        return Reading(shown, _findings(tree, text, shown))
    except RecursionError:
        return Reading(shown, problem=f"{shown} is nested too deeply to be read for habits")
    except TooMuchError:
        return Reading(shown, problem=f"{shown} has too many conditions and calls to be read for habits")
    except Exception as error:  # our own bug: a session is worth having without the findings of one file
        return Reading(shown, problem=f"{shown} could not be read for habits: {type(error).__name__}: {error}")


def _parsed(text: str, *, interactive: bool = False) -> ast.Module | str:
    flags = ast.PyCF_ONLY_AST | (ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if interactive else 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = compile(text, "<source>", "exec", flags=flags, dont_inherit=True)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        return f"{where}{error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error).partition("\n")[0] or "it is nested too deeply"
    assert isinstance(tree, ast.Module)
    return tree


def _findings(tree: ast.Module, text: str, shown: str) -> tuple[Finding, ...]:
    lines = text.splitlines()
    found: dict[tuple[int, str], Finding] = {}
    for habit in habits_of(tree):
        number = _line_of(habit.node)
        line = lines[number - 1].strip()[:_LONGEST_LINE] if number <= len(lines) else ""
        finding = Finding(habit.recipe, shown, number, line, habit.what, habit.advice, habit.value)
        found.setdefault((number, habit.recipe), finding)
    return tuple(sorted(found.values(), key=lambda finding: (finding.line, finding.recipe)))


def _line_of(node: ast.expr | ast.stmt) -> int:
    """The line that a person would point at: of a chain of calls over several lines, where its last one is."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.end_lineno or node.lineno
    return node.lineno


# --- notebooks ------------------------------------------------------------------------------------------------


def _read_notebook(content: bytes, shown: str) -> Reading:
    """The code cells as one program, in their order; a cell that cannot be parsed is left out."""
    try:
        cells = list(_code_cells(json.loads(content)))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return Reading(shown, problem=f"{shown} is not a notebook that can be read")
    texts: list[str] = []
    origins: list[tuple[int, int]] = []
    unread: list[int] = []
    for number, cell in cells:
        text = _without_magics(cell)
        if isinstance(_parsed(text, interactive=True), str):
            unread.append(number)
            continue
        lines = text.splitlines()
        texts += lines
        origins += [(number, line) for line in range(1, len(lines) + 1)]
    problem = f"{shown}: cell {', '.join(map(str, unread))} cannot be parsed" if unread else ""
    tree = _parsed("\n".join(texts), interactive=True)
    if isinstance(tree, str):
        return Reading(shown, problem=problem or f"{shown} cannot be parsed: {tree}")
    reading = _judged(tree, "\n".join(texts), shown)
    return Reading(shown, tuple(_in_cell(finding, origins) for finding in reading.findings), reading.problem or problem)


def _in_cell(finding: Finding, origins: list[tuple[int, int]]) -> Finding:
    cell, line = origins[finding.line - 1]
    return replace(finding, file=f"{finding.file} cell {cell}", line=line)


def _code_cells(notebook: object) -> Iterator[tuple[int, str]]:
    """The number (from 1, among all cells) and the text of each code cell."""
    if not isinstance(notebook, dict) or not isinstance(notebook["cells"], list):
        raise TypeError("a notebook is a mapping that has cells")
    for number, cell in enumerate(notebook["cells"], start=1):
        if cell.get("cell_type") == "code":
            source = cell.get("source", "")
            yield number, source if isinstance(source, str) else "".join(source)


def _without_magics(cell: str) -> str:
    """A cell's Python, with the same lines: commands of the notebook become comments."""
    lines = cell.splitlines()
    first = lines[0].lstrip() if lines else ""
    if first.startswith("%%") and not first.startswith(_PYTHON_MAGICS):
        return ""
    return "\n".join(_without_magic(line) for line in lines)


def _without_magic(line: str) -> str:
    stripped = line.lstrip()
    if not stripped.startswith(("%", "!", "?")) and not (stripped.endswith("?") and "#" not in stripped):
        return line
    return f"{line[: len(line) - len(stripped)]}pass"


# Recipes whose habits cost time on a GPU only: reading a value, or copying, waits for nothing on a CPU.
ON_GPU_ONLY = frozenset({"loss_sync", "host_sync", "empty_cache", "pin_memory", "create_on_device"})
# Recipes whose habits are of loops that train.
IN_TRAINING_ONLY = frozenset({"loss_sync", "empty_cache", "zero_grad"})
_OF_LOADERS = frozenset({"num_workers", "pin_memory"})
# A loader whose part of the step is below this share has nothing to gain. Unitless.
_LEAST_SHARE = 0.01


def relevant(findings: Iterable[Finding], facts: Facts) -> tuple[Finding, ...]:
    """The findings that concern the measured loop and cost time on its device.

    Where gradients are there at times only, to clear them in another way would change what is trained.
    """
    loader, on_gpu, trains = facts.workload.loader, facts.on_cuda, facts.workload.mode is Mode.TRAIN
    return tuple(
        finding
        for finding in findings
        if (on_gpu or finding.recipe not in ON_GPU_ONLY)
        and (trains or finding.recipe not in IN_TRAINING_ONLY)
        and not (finding.recipe == "zero_grad" and facts.gradients_at_times)
        and (finding.recipe not in _OF_LOADERS or (_lacks(loader, finding.recipe) and _feeds_slowly(facts.profile)))
    )


def _feeds_slowly(profile: Profile | None) -> bool:
    """Whether waiting for data and copying it take a share of the step that counts; so do times that are not known."""
    known = [profile.phases.get(phase) for phase in (Phase.DATA_WAIT, Phase.HOST_TO_DEVICE)] if profile else []
    taken = [milliseconds for milliseconds in known if milliseconds is not None]
    return not taken or profile is None or sum(taken) >= _LEAST_SHARE * profile.step_ms


def _lacks(loader: LoaderFacts | None, recipe: str) -> bool:
    """Whether the measured loop has a loader, and that has neither workers nor pinned memory, as the finding says."""
    return loader is not None and not (loader.num_workers if recipe == "num_workers" else loader.pin_memory)
