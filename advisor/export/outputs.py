"""Writing what the command line asked for: the JSON report, the settings or patched config, the report, the trace."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import advisor
from advisor.errors import AdvisorError, UsageError
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.experiment.verification import Exported
from advisor.export.files import write_atomically
from advisor.figures.formatting import CONTROLS, format_pending
from advisor.files.config_file import read_config
from advisor.recipe.catalog import Catalog
from advisor.records import Mode, Value
from advisor.records.outputs import STANDARD_OUTPUT, Outputs
from advisor.report.conclusions import candidates_tried, stack_helps

if TYPE_CHECKING:
    from advisor.export.patched_config import ExportedConfig

Verify = Callable[[Exported], None]


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the outputs: a sentence for each one written, and an error for each one that could not be."""

    sentences: tuple[str, ...]
    errors: tuple[AdvisorError, ...]


@dataclass(frozen=True, slots=True)
class _Output:
    """One file to write: ``content`` makes what it holds at its turn, ``remark`` adds to the sentence about it.

    ``more`` are the lines after that sentence. ``exported`` is what can be verified of it.
    """

    what: str
    path: str
    content: Callable[[], str | bytes]
    remark: str = ""
    more: tuple[str, ...] = ()
    exported: Callable[[], Exported] | None = None


def write_outputs(
    state: SessionState, request: Request, outputs: Outputs, catalog: Catalog, verify: Verify | None = None
) -> Written:
    """Write every output that was asked for. One that fails does not keep the others from being written.

    A session that measured nothing leaves its JSON report only, and one that was not profiled no trace. ``verify`` is
    called with the export once that is written, before the reports, which say what came of it.
    """
    sentences: list[str] = []
    errors: list[AdvisorError] = []
    wanted = _planned(state, request, outputs, catalog, errors)
    for output in sorted(wanted, key=_turn):
        try:
            _write(output.path, output.content())
            if verify and output.exported:
                verify(output.exported())
        except AdvisorError as error:
            errors.append(error)
            continue
        if output.path != STANDARD_OUTPUT:
            sentences += [f"{output.what} written to {output.path}{output.remark}.", *output.more]
    if state.baseline is None and (outputs.export_path or outputs.report_path):
        sentences.append("Nothing was measured, so there are no settings and no report to write.")
    if outputs.trace_path and not _trace_of(state):
        sentences.append("The session ended before its profile, so there is no trace to write.")
    return Written(tuple(sentences), tuple(errors))


def _turn(output: _Output) -> int:
    """Exports come first, for the reports say whether they work; standard output last: its reader may have left."""
    return 2 if output.path == STANDARD_OUTPUT else 0 if output.exported else 1


def _planned(
    state: SessionState, request: Request, outputs: Outputs, catalog: Catalog, errors: list[AdvisorError]
) -> list[_Output]:
    """The files to write. An export that cannot be planned is an error, and keeps no other from being written."""
    try:
        return list(_wanted(state, request, outputs, catalog))
    except AdvisorError as error:
        errors.append(error)
        return list(_wanted(state, request, replace(outputs, export_path=None), catalog))


def settings_to_export(state: SessionState) -> dict[str, Value]:
    """The settings that won: those of the measured stack less what was rejected; none when there is no such stack."""
    stack = state.stack
    return state.stack_settings if stack and (stack.result.measured or stack.pending) else {}


def _wanted(state: SessionState, request: Request, outputs: Outputs, catalog: Catalog) -> Iterator[_Output]:
    if outputs.json_path:
        yield _Output("JSON report", outputs.json_path, lambda: json_text(state, request, catalog))
    trace, trace_path = _trace_of(state), outputs.trace_path
    if trace and trace_path:
        yield _Output("Trace", trace_path, lambda: trace_content(trace, compressed=trace_path.lower().endswith(".gz")))
    if state.baseline is None:
        return
    if outputs.export_path:
        yield from _exported(state, request, outputs, catalog, outputs.export_path)
    if outputs.report_path:
        html = Path(outputs.report_path).suffix.lower() == ".html"
        yield _Output("Report", outputs.report_path, lambda: report_text(state, request, catalog, html=html))


def _write(path: str, content: str | bytes) -> None:
    if path == STANDARD_OUTPUT and isinstance(content, str):
        sys.stdout.write(content if content.endswith("\n") else f"{content}\n")
        sys.stdout.flush()
    else:
        write_atomically(path, content)


def _trace_of(state: SessionState) -> str:
    """Where the session keeps its profile's trace; empty when there is none."""
    return state.facts.profile.trace_path if state.facts and state.facts.profile else ""


def _remark(state: SessionState) -> str:
    """What a person must know of an export that promises less than they expect."""
    if state.stack and state.stack.pending:
        return f": {format_pending(state.stack)}"
    if settings_to_export(state):
        return "" if stack_helps(state) else f", though together they {state.goal.not_better(2)}"
    if state.finished is None or state.finished.cancelled:
        return ", without settings: the session ended before any were measured together"
    if not candidates_tried(state):
        return ", without settings: no candidate was tried"
    return f", without settings: nothing that was measured together {state.goal.better()}"


def _exported(
    state: SessionState, request: Request, outputs: Outputs, catalog: Catalog, path: str
) -> Iterator[_Output]:
    """The settings that won: as a Python file, in the user's config and a file for the rest, or as they are."""
    settings = settings_to_export(state)
    if Path(path).suffix.lower() == ".py":
        text = lambda: python_text(state, settings, catalog)  # noqa: E731
        yield _Output("Python file", path, text, _remark(state), exported=lambda: Exported(path))
    elif outputs.config_path:
        exported = patched_config(state, outputs, catalog, Path(path))
        whole = (lambda: Exported(path, read_config(path))) if exported.patch.added else None
        yield _Output("Patched config", path, lambda: exported.patch.text, _remark(state), exported.sentences, whole)
        if exported.rest_path:
            rest, rest_path = exported.patch.rest, str(exported.rest_path)
            text = lambda: yaml_text(state, rest, request, beside=Path(path).name)  # noqa: E731
            yield _Output("The rest", rest_path, text, more=exported.code)
    else:
        text = lambda: yaml_text(state, settings, request)  # noqa: E731
        yield _Output("Settings", path, text, _remark(state), exported=lambda: Exported(path))


def yaml_text(state: SessionState, settings: dict[str, Value], request: Request, *, beside: str = "") -> str:
    """The settings file: a flat YAML mapping with what was measured in comments.

    ``beside`` is the patched config that says the other settings; empty where the file holds them all.
    """
    from advisor.export.settings_file import settings_yaml

    return settings_yaml(state, settings, target=request.target.command, beside=beside)


def python_text(state: SessionState, settings: dict[str, Value], catalog: Catalog) -> str:
    """The Python file: the settings as plain PyTorch."""
    from advisor.export.python_file import python_source

    workload = state.facts.workload if state.facts else None
    mode = workload.mode if workload else Mode.TRAIN
    return python_source(catalog, settings, mode, own_step=bool(workload and workload.own_step))


def patched_config(state: SessionState, outputs: Outputs, catalog: Catalog, path: Path) -> ExportedConfig:
    """The user's config with the settings in it, for a file of this path. Raises UsageError."""
    from advisor.export.patched_config import patched_for

    return patched_for(state, settings_to_export(state), outputs, catalog, path)


def json_text(state: SessionState, request: Request, catalog: Catalog | None = None) -> str:
    """The JSON report; ``catalog`` holds the built-in recipes when it is not given."""
    from advisor.export.json_report import report

    made = report(state, request, advisor.__version__, catalog)
    text = json.dumps(made, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    return CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", text)  # the same JSON, safe on a terminal


def report_text(state: SessionState, request: Request, catalog: Catalog, *, html: bool) -> str:
    """The report for people, as Markdown or HTML."""
    from advisor.export.text_report import html_report, markdown_report

    return (html_report if html else markdown_report)(state, request, catalog)


def trace_content(path: str, *, compressed: bool) -> bytes:
    """The profile's Chrome trace as JSON, gzipped as the session keeps it or not. Raises UsageError when it is gone."""
    try:
        content = Path(path).read_bytes()
        return content if compressed else gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(
            f"the trace {path} cannot be read: {getattr(error, 'strerror', None) or error}.",
            "Measure again; sessions keep their traces in the state folder, beside the logs.",
        ) from error
