"""Writing what the command line asked for: the JSON report, the settings or patched config, the report, the trace."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import advisor
from advisor.catalog import Catalog
from advisor.errors import AdvisorError, UsageError
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.export.files import read_exactly, write_atomically
from advisor.formatting import CONTROLS, format_pending
from advisor.options import STANDARD_OUTPUT, Outputs
from advisor.records import Mode, Value
from advisor.report.conclusions import candidates_tried, stack_helps


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the outputs: a sentence for each one written, and an error for each one that could not be."""

    sentences: tuple[str, ...]
    errors: tuple[AdvisorError, ...]


@dataclass(frozen=True, slots=True)
class _Output:
    """One file to write: ``content`` makes what it holds at its turn, ``remark`` adds to the sentence about it."""

    what: str
    path: str
    content: Callable[[], str | bytes]
    remark: str = ""


def write_outputs(state: SessionState, request: Request, outputs: Outputs, catalog: Catalog) -> Written:
    """Write every output that was asked for. One that fails does not keep the others from being written.

    A session that measured nothing leaves its JSON report only, and one that was not profiled no trace.
    """
    sentences: list[str] = []
    errors: list[AdvisorError] = []
    wanted = list(_wanted(state, request, outputs, catalog))
    for output in sorted(wanted, key=lambda output: output.path == STANDARD_OUTPUT):  # its reader may have left
        try:
            _write(output.path, output.content())
        except AdvisorError as error:
            errors.append(error)
            continue
        if output.path != STANDARD_OUTPUT:
            sentences.append(f"{output.what} written to {output.path}{output.remark}.")
    if state.baseline is None and (outputs.export_path or outputs.report_path):
        sentences.append("Nothing was measured, so there are no settings and no report to write.")
    if outputs.trace_path and not _trace_of(state):
        sentences.append("The session ended before its profile, so there is no trace to write.")
    return Written(tuple(sentences), tuple(errors))


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
        what, text = _settings(state, request, outputs, catalog)
        yield _Output(what, outputs.export_path, text, _remark(state))
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


def _settings(
    state: SessionState, request: Request, outputs: Outputs, catalog: Catalog
) -> tuple[str, Callable[[], str]]:
    """What the export is called, and how its text is made: a Python file, the patched config, or settings."""
    settings = settings_to_export(state)
    if Path(outputs.export_path or "").suffix.lower() == ".py":
        return "Python file", lambda: python_text(state, settings, catalog)
    if outputs.config_path:
        return "Patched config", lambda: patched_text(state, settings, outputs)
    return "Settings", lambda: yaml_text(state, settings, request)


def yaml_text(state: SessionState, settings: dict[str, Value], request: Request) -> str:
    """The settings file: a flat YAML mapping with what was measured in comments."""
    from advisor.export.settings_file import settings_yaml

    return settings_yaml(state, settings, target=request.target.command)


def python_text(state: SessionState, settings: dict[str, Value], catalog: Catalog) -> str:
    """The Python file: the settings as plain PyTorch."""
    from advisor.export.python_file import python_source

    return python_source(catalog, settings, state.facts.workload.mode if state.facts else Mode.TRAIN)


def patched_text(state: SessionState, settings: dict[str, Value], outputs: Outputs) -> str:
    """The user's config with the settings in it, every other character as it was."""
    from advisor.export.config_patch import patch_config

    current = state.facts.workload.current if state.facts else {}
    return patch_config(read_exactly(outputs.config_path or ""), settings, current, outputs.key_map).text


def json_text(state: SessionState, request: Request, catalog: Catalog | None = None) -> str:
    """The JSON report; ``catalog`` is that of the request when it is not given."""
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
