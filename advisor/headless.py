"""A session without the app: progress lines on standard error, the results on standard output, files as asked for."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import singledispatchmethod
from types import FrameType
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from advisor.catalog import load_catalog
from advisor.errors import AdvisorError, ExitCode
from advisor.export.outputs import Written, write_outputs
from advisor.formatting import (
    MISSING,
    format_break_even,
    format_bytes,
    format_bytes_change,
    format_class,
    format_count,
    format_found,
    format_interval,
    format_left,
    format_ms,
    format_noise,
    format_numerics,
    format_outcome,
    format_percent,
    format_rate,
    format_ratio,
    format_seconds,
    format_setting,
    format_way,
)
from advisor.options import Outputs
from advisor.records import (
    BaselineRecord,
    Comparison,
    Facts,
    HabitRow,
    Hardware,
    Mode,
    Recommendation,
    StackRecord,
    TrialRecord,
    Verdict,
)
from advisor.session import events
from advisor.session.control import SessionControl
from advisor.session.habits import habit_rows, price_of
from advisor.session.journal import Journal, PastSession
from advisor.session.request import Request
from advisor.session.state import SessionState

PLAIN_WIDTH = 100
SAME_SIGNAL_S = 1.0
_SIGNAL_CHECK_S = 0.2
_STAGES = {
    "loading": "loading the target",
    "baseline": "measuring the baseline",
    "trials": "trying candidates",
    "others": "pricing habits, and what needs your consent",
    "close calls": "settling close calls in turn with the baseline",
    "stack": "measuring settings together",
    "confirmation": "confirming against the baseline",
}
_STYLES = {
    Verdict.FASTER: "green",
    Verdict.SLOWER: "red",
    Verdict.NO_DIFFERENCE: "dim",
    Verdict.FAILED: "yellow",
    Verdict.SKIPPED: "dim",
}

Emit = Callable[[events.Event], None]
OpenSession = Callable[[Request, "PastSession | None", Emit], SessionControl]


# --- running --------------------------------------------------------------------------------------------------


def open_session(request: Request, past: PastSession | None, emit: Emit) -> SessionControl:
    """A session with its journal and its trial processes, ready to run."""
    from advisor.runner import Runner
    from advisor.session.session import Session

    Runner.prepare()
    journal = Journal.create(request) if past is None else Journal(past.path, request)
    return Session(request, Runner(), emit, journal, past=past)


def run_headless(
    request: Request, outputs: Outputs, past: PastSession | None = None, *, opener: OpenSession | None = None
) -> int:
    """Run a session, or take up a past one, to its end; report it, write the outputs, and return the exit code.

    SIGINT and SIGTERM end the session; what was measured until then is reported and written. Raises AdvisorError when
    the session failed or an output could not be written, after all else is done.
    """
    reporter = HeadlessReporter(sys.stderr)
    session = (opener or open_session)(request, past, reporter.handle)
    with _cancelled_by_signals(session, reporter.say):
        _run_in_thread(session)
        written = _report(reporter, request, outputs)
    error = _failure(reporter.state) or next(iter(written.errors), None)
    if error:
        raise error
    finished = reporter.state.finished
    return ExitCode.INTERRUPTED if finished and finished.cancelled else ExitCode.OK


def _run_in_thread(session: SessionControl) -> None:
    """Run the session in a thread of its own, so that a signal never interrupts it half-way."""
    worker = threading.Thread(target=session.run, name="session", daemon=True)
    worker.start()
    while worker.is_alive():  # where another thread takes a signal, only a wait that ends runs the handler
        worker.join(_SIGNAL_CHECK_S)


@contextmanager
def _cancelled_by_signals(session: SessionControl, say: Callable[[str], None]) -> Iterator[None]:
    """SIGINT and SIGTERM cancel the session; the next one, a moment later, leaves at once.

    The moment is there because one Ctrl+C can arrive twice: from the terminal, and from a parent that passes it on.
    """
    first: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not first:
            first.append(time.monotonic())
            say("stopping; what was measured is kept (once more to leave at once)")
            session.cancel()
        elif time.monotonic() - first[0] > SAME_SIGNAL_S:
            raise KeyboardInterrupt

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _report(reporter: HeadlessReporter, request: Request, outputs: Outputs) -> Written:
    """The files first: whoever reads our output may leave."""
    state = reporter.state
    written = write_outputs(state, request, outputs, load_catalog(request.recipe_folders))
    if state.baseline:
        print_summary(state, sys.stderr if outputs.json_to_stdout else sys.stdout)
    for sentence in written.sentences:
        reporter.say(sentence)
    return written


def _failure(state: SessionState) -> AdvisorError | None:
    """Why the session could not go on, as an error with the exit code that it names."""
    if state.finished and state.finished.cancelled:
        return None
    if state.failure:
        error = AdvisorError(state.failure.message, state.failure.hint, state.failure.details)
        error.exit_code = ExitCode(state.failure.exit_code)
        return error
    if state.finished is None:
        return AdvisorError("the session ended without a word.", "This is a bug of ours: please report it.")
    return None


# --- progress -------------------------------------------------------------------------------------------------


class HeadlessReporter:
    """Takes a session's events, keeps its state, and writes a line for each one that a person waits for."""

    def __init__(self, file: TextIO) -> None:
        self.state = SessionState()
        self._file = file
        self._told: dict[str, str] = {}

    def handle(self, event: events.Event) -> None:
        """Take one event into account. Called from the session's thread."""
        for line in self._lines(event):
            self._tell(line)
        self.state.apply(event)

    def say(self, text: str) -> None:
        """Write a line of our own. When nobody reads it any more, the session goes on all the same."""
        with suppress(BrokenPipeError):
            print(plain(text), file=self._file, flush=True)

    def _tell(self, line: str) -> None:
        left = format_left(self.state.left_s).removeprefix("about ")
        share = f"{100 * self.state.progress:3.0f} %"
        self.say(f"[{share}, {left}] {line}" if left else f"[{share}] {line}")

    @singledispatchmethod
    def _lines(self, event: events.Event) -> Iterable[str]:
        """The lines that an event is worth; most are worth none."""
        return ()

    @_lines.register
    def _(self, event: events.HardwareFound) -> Iterable[str]:
        return filter(None, (hardware_line(event.hardware), event.hardware.gpu_note))

    @_lines.register
    def _(self, event: events.SourceRead) -> Iterable[str]:
        if event.files:
            yield f"read the source: {format_found(len(event.findings), len(event.files))}"
        yield from event.problems

    @_lines.register
    def _(self, event: events.StageStarted) -> Iterable[str]:
        return () if event.stage == "done" else (_STAGES.get(event.stage, event.stage),)

    @_lines.register
    def _(self, event: events.FactsFound) -> Iterable[str]:
        if self.state.facts is None:
            yield _workload_line(event.facts)
            yield from event.facts.workload.notes
        profile = event.facts.profile
        if profile and profile.bottleneck:
            yield f"bound by {profile.bottleneck}: {profile.evidence}"

    @_lines.register
    def _(self, event: events.BaselineMeasured) -> Iterable[str]:
        return () if self.state.baseline else (f"baseline: {_baseline_line(event.baseline)}",)

    @_lines.register
    def _(self, event: events.TrialsPlanned) -> Iterable[str]:
        count = len(event.candidates)
        yield f"{count} {'candidate' if count == 1 else 'candidates'} to try"
        if event.skipped:
            yield f"{len(event.skipped)} recipes skipped, with the reasons at the end: {', '.join(event.skipped)}"

    @_lines.register
    def _(self, event: events.TrialMeasured) -> Iterable[str]:
        name, effect = event.record.candidate.name, trial_effect(event.record)
        verdict = event.record.verdict
        if self._told.get(name) == verdict:  # told again for a new noise floor that changed nothing
            return ()
        again = " (with the new noise floor)" if name in self._told else ""
        self._told[name] = verdict
        return (f"{event.record.label}  {effect}{again}",)

    @_lines.register
    def _(self, event: events.StackMeasured) -> Iterable[str]:
        if not event.record.settings:
            return ("together: nothing is faster than the baseline",)
        return (f"together: {_settings_text(event.record)}  {_stack_effect(event.record)}",)

    @_lines.register
    def _(self, event: events.Said) -> Iterable[str]:
        return (event.text if event.severity == "information" else f"{event.severity}: {event.text}",)

    @_lines.register
    def _(self, event: events.SessionFinished) -> Iterable[str]:
        words = "interrupted" if event.cancelled else "failed" if self.state.failure else "finished"
        return (f"{words} after {format_seconds(event.session_s)}",)


def plain(text: str) -> str:
    """Text of the user's as one line without control characters."""
    return "".join(character if character.isprintable() else " " for character in text).rstrip()


def hardware_line(hardware: Hardware) -> str:
    """The machine in one line: its GPUs, its processor."""
    host = hardware.host
    names = [gpu.name for gpu in hardware.gpus]
    gpus = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    memory = format_bytes(host.memory_total_bytes)
    return ", ".join((*gpus, f"{host.cpu} with {host.usable_cores} usable cores", f"{memory} of memory"))


def trial_effect(record: TrialRecord) -> str:
    """What a trial found: its speed-up and verdict, or why there is none."""
    if record.verdict in (Verdict.FAILED, Verdict.SKIPPED):
        return format_outcome(record.result)
    unreliable = f" (unreliable: {record.result.disturbed})" if record.result.disturbed else ""
    return _effect(record.comparison) + unreliable


def _effect(comparison: Comparison | None) -> str:
    if comparison is None:
        return MISSING
    if comparison.verdict is Verdict.NO_DIFFERENCE:
        return comparison.verdict.value
    return f"{format_interval(comparison)} {comparison.verdict}"


def _stack_effect(stack: StackRecord) -> str:
    if not stack.result.measured:
        return format_outcome(stack.result)
    proven = stack.confirmed and stack.settings  # nothing is confirmed of the baseline against itself
    return f"{_effect(stack.comparison)}{', confirmed' if proven else ''}"


def _workload_line(facts: Facts) -> str:
    workload = facts.workload
    loop = "training" if workload.mode is Mode.TRAIN else "inference"
    device = f"{workload.device_name} ({workload.device})" if facts.on_cuda else "the CPU"
    parameters = format_count(workload.parameters)
    return f"{workload.model}, {parameters} parameters, {loop} on {device}, batch: {workload.batch_text}"


def _baseline_line(baseline: BaselineRecord) -> str:
    step, rate = format_ms(baseline.step_ms), format_rate(baseline.samples_per_s)
    memory, noise = format_bytes(baseline.result.peak_reserved_bytes), format_noise(baseline.noise_floor)
    return f"{step} per step, {rate}, {memory} reserved, noise {noise}"


def _settings_text(stack: StackRecord) -> str:
    return ", ".join(format_setting(key, value) for key, value in stack.settings.items()) or "no settings"


# --- the summary ----------------------------------------------------------------------------------------------


def print_summary(state: SessionState, file: TextIO) -> None:
    """The ranked recommendations, the stack, the other trials and the skipped recipes, as text."""
    for title, body in _sections(state):
        print_text(Group(Text(f"\n{title}", style="bold"), Padding(body, (0, 0, 0, 2), expand=False)), file)


def print_text(text: RenderableType, file: TextIO) -> None:
    """Print text as it is, never as markup; where there is no terminal, plain and 100 columns wide."""
    width = None if file.isatty() else PLAIN_WIDTH
    console = Console(file=file, width=width, markup=False, emoji=False, highlight=False)
    if file.isatty():
        console.print(text)
        return
    with console.capture() as capture:
        console.print(text)
    file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """An empty table without frames; the columns named in ``right`` hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=column in right)
    return made


def _sections(state: SessionState) -> Iterator[tuple[str, RenderableType]]:
    if state.baseline:
        yield "Baseline", Text(_baseline_line(state.baseline))
    if state.recommendations:
        yield "Recommendations, best first", Group(_ranked(state), *_consent_note(state.recommendations))
    elif state.finished and not state.finished.cancelled and not state.failure:
        yield "Recommendations", Text("None: nothing that was tried is faster than what you have.")
    if state.stack and (state.stack.settings or state.stack.dropped):
        yield "Together", _stack(state, state.stack)
    ranked = {item.record.candidate.name for item in state.recommendations}
    others = [record for name, record in state.trials.items() if name not in ranked]
    if others:
        yield "Other trials", _others(others)
    if state.skipped:
        yield "Skipped", _pairs(("recipe", "reason"), _by_reason(state.skipped))
    if rows := habit_rows(state):
        yield "Habits, way by way", _habits(rows)
    if state.findings:
        yield "Found in your source", _findings(state)


def _consent_note(recommendations: Iterable[Recommendation]) -> Iterator[Text]:
    if any(_membership(item) == "ask" for item in recommendations):
        yield Text("ask: it changes what is computed, so it enters the stack with --allow changed only", style="dim")


def _ranked(state: SessionState) -> Table:
    made = table("", "recommendation", "speed-up", "step", "memory", "numerics", "pays back", "stack", right=("step",))
    for column in made.columns:
        column.no_wrap, column.overflow = column.header != "recommendation", "fold"
    for item in state.recommendations:
        record = item.record
        made.add_row(
            str(item.rank),
            Text(plain(record.label)),
            Text(format_ratio(record.comparison), style=_STYLES[record.verdict]),
            format_ms(record.step_ms),
            _memory(record, state.baseline),
            format_class(record.numerics),
            format_break_even(record.break_even_steps).removeprefix("after "),
            _membership(item),
        )
    return made


def _memory(record: TrialRecord | StackRecord, baseline: BaselineRecord | None) -> str:
    before = baseline.result.peak_reserved_bytes if baseline else None
    return format_bytes_change(record.result.peak_reserved_bytes, before)


def _membership(item: Recommendation) -> str:
    if item.in_stack:
        return "yes"
    return "ask" if item.needs_consent else "no"


def _change(text: Callable[[float | None], str], before: float | None, after: float | None) -> str:
    """A figure of the stack, after the baseline's as it was timed beside it."""
    return text(after) if before is None else f"{text(before)} → {text(after)}"


def _stack(state: SessionState, stack: StackRecord) -> Group:
    figures = [_stack_effect(stack)]
    if stack.result.measured:
        figures += [
            f"{_change(format_ms, stack.baseline_step_ms, stack.step_ms)} per step",
            _change(format_rate, stack.baseline_samples_per_s, stack.samples_per_s),
            f"memory {_memory(stack, state.baseline)}",
            f"numerics {format_numerics(stack.numerics)}",
        ]
    lines = [Text(plain(format_setting(key, value))) for key, value in stack.settings.items()]
    dropped = [Text(plain(f"left out: {name} ({reason})"), style="dim") for name, reason in stack.dropped.items()]
    style = _STYLES[stack.comparison.verdict if stack.comparison else Verdict.FAILED]
    return Group(*(lines or [Text("no settings")]), Text(plain(", ".join(figures)), style=style), *dropped)


def _others(records: Iterable[TrialRecord]) -> Table:
    made = table("trial", "result")
    for record in records:
        effect = trial_effect(record)
        if record.verdict is Verdict.NO_DIFFERENCE:
            effect = f"{effect}: {format_interval(record.comparison)}"
        made.add_row(Text(plain(record.label)), Text(plain(effect), style=_STYLES[record.verdict]))
    return made


def _habits(rows: Iterable[HabitRow]) -> Table:
    made = table("habit", "way", "its phase", "step", "share", "memory", right=("its phase", "step", "share", "memory"))
    for row in rows:
        figures = (format_ms(row.phase_ms), format_ms(row.step_ms), format_percent(row.share, digits=1))
        made.add_row(row.habit, format_way(row), *figures, format_bytes(row.memory_bytes))
    return made


def _findings(state: SessionState) -> Table:
    made = table("where", "what", "instead", "measured")
    made.columns[0].overflow = "fold"
    for finding in state.findings:
        price = price_of(finding, state.trials.values())
        measured = f"{price.candidate.name} {format_interval(price.comparison)}" if price else MISSING
        made.add_row(*(Text(plain(text)) for text in (finding.place, finding.what, finding.advice, measured)))
    return made


def _by_reason(skipped: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The recipes that were skipped for one reason in one row."""
    for reason in dict.fromkeys(skipped.values()):
        yield ", ".join(name for name, given in skipped.items() if given == reason), reason


def _pairs(columns: tuple[str, str], pairs: Iterable[tuple[str, str]]) -> Table:
    made = table(*columns)
    for left, right in pairs:
        made.add_row(Text(plain(left)), Text(plain(right)))
    return made
