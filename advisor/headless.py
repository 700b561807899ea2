"""A session without the app: progress lines on standard error, the results on standard output, files as asked for."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import singledispatchmethod
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from advisor.errors import AdvisorError, ExitCode
from advisor.experiment import events
from advisor.experiment.control import SessionControl
from advisor.experiment.journal import Journal, PastSession
from advisor.experiment.objective import Yardstick
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.experiment.verification import Exported, limit_s, may_be_verified
from advisor.export.evidence import (
    bound_sentence,
    caveats,
    clock_warning,
    cpu_sentence,
    roof_text,
    sweep_caveats,
    sweep_sentence,
)
from advisor.export.figures import (
    effect_words,
    energy_words,
    gpu_sentence,
    how_confirmed,
    noise_words,
    own_figures,
    verdict_shown,
    verified_words,
)
from advisor.export.outputs import Written, write_outputs
from advisor.export.pareto import PARETO_HEADINGS, pareto_rows, pareto_sentence
from advisor.export.text_report import verdict
from advisor.figures.formatting import (
    MISSING,
    format_bytes,
    format_bytes_change,
    format_change,
    format_class,
    format_count,
    format_found,
    format_interval,
    format_left,
    format_ms,
    format_names,
    format_numerics,
    format_outcome,
    format_percent,
    format_rate,
    format_repayment,
    format_seconds,
    format_setting,
    format_way,
    plain,
    printable,
)
from advisor.figures.sweep import HEADINGS, SweepPoint, sweep_rows
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.process.interrupts import INTERRUPTS
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.records import (
    BaselineRecord,
    Comparison,
    Facts,
    HabitRow,
    Hardware,
    Mode,
    Objective,
    Recommendation,
    StackRecord,
    TrialRecord,
    TrialResult,
    Verdict,
)
from advisor.records.outputs import Outputs
from advisor.report.conclusions import (
    Untried,
    candidates_tried,
    own_notes,
    roof_shares,
    shown_by,
    stack_helps,
    sweep_of,
    tried,
    untried,
)
from advisor.report.habits import habit_rows, price_text

PLAIN_WIDTH = 100
_SIGNAL_CHECK_S = 0.05
# What is not over is not all done, however short the rest is expected to be.
_ALMOST = 0.99
_LONGEST_NAMES = 50
_STAGES = {
    "baseline": "measuring the baseline",
    "leap": "measuring the usual stack",
    "instruments": "measuring noise and the profile",
    "search": "improving the stack",
    "confirmation": "confirming the stack",
    "alone": "measuring settings alone",
}
_RANKED = {
    Objective.THROUGHPUT: "Recommendations, best first",
    Objective.LATENCY: "Recommendations, the shortest step first",
    Objective.MEMORY: "Recommendations, the smallest memory first",
    Objective.ENERGY: "Recommendations, the least energy first",
}
# What a figure of the ranking is marked with, by whether it is unreliable and whether it was measured in turn.
_MARKS = {(False, False): "", (False, True): " *", (True, False): " !", (True, True): " *!"}
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
    from advisor.experiment.session import Session
    from advisor.runner.trials import Runner

    Runner.prepare()
    journal = Journal.create(request) if past is None else Journal(past.path, request)
    return Session(request, Runner(), emit, journal, past=past)


def run_headless(
    request: Request, outputs: Outputs, past: PastSession | None = None, *, opener: OpenSession | None = None
) -> int:
    """Run a session, or take up a past one, to its end; report it, write the outputs, and return the exit code.

    SIGINT, SIGTERM and SIGHUP end the session; what was measured until then is reported and written. Raises
    AdvisorError when the session failed or an output could not be written, after all else is done; and
    KeyboardInterrupt when a second signal came and the session had not ended.
    """
    reporter = HeadlessReporter(sys.stderr)
    with INTERRUPTS.handled():
        session = (opener or open_session)(request, past, reporter.handle)
        started = time.monotonic()
        with INTERRUPTS.obeyed_by():
            ended = _run_in_thread(session, session.run, reporter.say)
            if not ended:
                reporter.close()
                reporter.state.apply(events.SessionFinished(True, time.monotonic() - started))
            written = _report(reporter, request, outputs, session)
            for line in _left_off(reporter.state):
                reporter.say(line)
    if not ended:
        raise KeyboardInterrupt
    error = _failure(reporter.state) or next(iter(written.errors), None)
    if error:
        raise error
    finished = reporter.state.finished
    return ExitCode.INTERRUPTED if finished and finished.cancelled else ExitCode.OK


def _run_in_thread(session: SessionControl, part: Callable[[], None], say: Callable[[str], None]) -> bool:
    """Run a part of the session in a thread of its own, which no signal interrupts half-way. Whether it has ended.

    The first signal ends it early; after another it is not waited for any more.
    """
    worker = threading.Thread(target=part, name="session", daemon=True)
    cancelled = INTERRUPTS.asked
    if cancelled:
        session.cancel()
    worker.start()
    while worker.is_alive() and not INTERRUPTS.urgent:
        worker.join(_SIGNAL_CHECK_S)
        if INTERRUPTS.asked and not cancelled:
            cancelled = True
            say("stopping; what was measured is kept (once more to leave at once)")
            session.cancel()
    return not worker.is_alive()


def _report(reporter: HeadlessReporter, request: Request, outputs: Outputs, session: SessionControl) -> Written:
    """The files first: whoever reads our output may leave."""
    state = reporter.state
    catalog = load_catalog(request.recipe_folders)

    def verify(exported: Exported) -> None:
        stack = state.stack
        if stack and may_be_verified(state) and outputs.verify and not INTERRUPTS.asked:
            reporter.say(f"verifying {exported.path} in a plain loop, {format_seconds(limit_s(stack))} at most")
            if not _run_in_thread(session, lambda: session.verify(exported, stack), reporter.say):
                reporter.close()

    written = write_outputs(state, request, outputs, catalog, verify)
    if state.baseline:
        print_summary(state, sys.stderr if outputs.json_to_stdout else sys.stdout, catalog)
    for sentence in written.sentences:
        reporter.say(sentence)
    return written


def _left_off(state: SessionState) -> Iterator[str]:
    """How to go on after an interruption."""
    if state.finished and state.finished.cancelled:
        yield f"{'nothing was measured yet; ' if state.baseline is None else ''}go on with: perf-advisor --resume"


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
    """Takes a session's events, keeps its state, and writes a line for each one that a person waits for.

    Candidates that are skipped one after the other for one reason are told together, when something else happens.
    """

    def __init__(self, file: TextIO) -> None:
        self.state = SessionState()
        self._file = file
        self._told: dict[str, tuple[Verdict | None, bool]] = {}
        self._skipped: list[TrialRecord] = []
        self._share = 0.0
        self._taking = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Take no more events: the state is what is reported. A session that was left may still post some."""
        with self._taking:
            self._closed = True

    def handle(self, event: events.Event) -> None:
        """Take one event into account. Called from the session's thread."""
        with self._taking:
            if not self._closed:
                self._take(event)

    def _take(self, event: events.Event) -> None:
        lines = list(self._lines(event))  # before the state takes it in: some tell what is new
        self.state.apply(event)
        if isinstance(event, events.TrialMeasured) and event.record.verdict is Verdict.SKIPPED:
            self._hold(event.record)
        elif lines:
            self._release()
            for line in lines:
                self._tell(line)

    def say(self, text: str) -> None:
        """Write a line of our own. When nobody reads it any more, the session goes on all the same."""
        with suppress(OSError):
            print(plain(text), file=self._file, flush=True)

    def _tell(self, line: str) -> None:
        """A line after the share that is done, which never falls. Only a session at its end has done all of it."""
        finished = self.state.finished
        over = finished is not None and not finished.cancelled and self.state.failure is None
        self._share = 1.0 if over else max(self._share, min(self.state.progress, _ALMOST))
        left = format_left(self.state.left_s).removeprefix("about ") if self.state.left_s else ""
        share = f"{100 * self._share:3.0f} %"
        self.say(f"[{share}, {left}] {line}" if left else f"[{share}] {line}")

    def _hold(self, record: TrialRecord) -> None:
        if self._skipped and self._skipped[-1].result.reason != record.result.reason:
            self._release()
        self._skipped.append(record)

    def _release(self) -> None:
        if not self._skipped:
            return
        names = format_names(record.candidate for record in self._skipped)
        listed = names if len(names) <= _LONGEST_NAMES else f"{len(self._skipped)} candidates"
        self._tell(f"{listed}  {format_outcome(self._skipped[0].result)}")
        self._skipped.clear()

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
            yield f"{profile.bottleneck.kind_of_step}: {profile.evidence}"

    @_lines.register
    def _(self, event: events.BaselineMeasured) -> Iterable[str]:
        return () if self.state.baseline else (f"baseline: {_baseline_line(event.baseline)}",)

    @_lines.register
    def _(self, event: events.TrialsPlanned) -> Iterable[str]:
        if self.state.planned:
            known = {candidate.name for candidate in self.state.planned}
            added = [candidate for candidate in event.candidates if candidate.name not in known]
            return (f"{len(added)} more to try with the stack: {format_names(added)}",) if added else ()
        count = len(event.candidates)
        skipped = f"; {len(event.skipped)} recipes skipped, with the reasons at the end" if event.skipped else ""
        return (f"{count} {'candidate' if count == 1 else 'candidates'} to try{skipped}",)

    @_lines.register
    def _(self, event: events.TrialMeasured) -> Iterable[str]:
        record = event.record
        told, now = self._told.get(record.label), (verdict_shown(record), record.confirmed and record.alone)
        if told == now:  # told again for a new noise floor that changed nothing
            return ()
        self._told[record.label] = now
        if now[0] is None:  # measured with others only: what they do together is told
            return ()
        again = " (with the new noise floor)" if told and None not in told and told[1] == now[1] else ""
        return (f"{_name(record)}  {trial_effect(record, self.state.yardstick)}{again}",)

    @_lines.register
    def _(self, event: events.StackMeasured) -> Iterable[str]:
        if not event.record.settings:
            tried = bool(candidates_tried(self.state))
            return (f"together: nothing {self.state.goal.better()}" if tried else "together: no candidate was tried",)
        return (f"together: {_settings_text(event.record)}  {_stack_effect(event.record, self.state.yardstick)}",)

    @_lines.register
    def _(self, event: events.Decided) -> Iterable[str]:
        return (f"you {event.decision or 'took back what you said of'} {event.recipe}",)

    @_lines.register
    def _(self, event: events.Said) -> Iterable[str]:
        return (event.text if event.severity == "information" else f"{event.severity}: {event.text}",)

    @_lines.register
    def _(self, event: events.ExportVerified) -> Iterable[str]:
        yield verified_words(event.verification)

    @_lines.register
    def _(self, event: events.SessionFinished) -> Iterable[str]:
        words = "interrupted" if event.cancelled else "failed" if self.state.failure else "finished"
        return (f"{words} after {format_seconds(event.session_s)}",)


def hardware_line(hardware: Hardware) -> str:
    """The machine in one line: its GPUs, its processor."""
    host = hardware.host
    names = [gpu.name for gpu in hardware.gpus]
    gpus = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    memory = format_bytes(host.memory_total_bytes)
    return ", ".join((*gpus, f"{host.cpu} with {host.usable_cores} usable cores", f"{memory} of memory"))


def trial_effect(record: TrialRecord, by: Yardstick | None = None) -> str:
    """What a trial found: its speed-up and verdict, or why there is none; and what must be known of the figure.

    ``by`` tells it by the objective where that is memory or energy.
    """
    if record.verdict in (Verdict.FAILED, Verdict.SKIPPED):
        return format_outcome(record.result)
    unreliable = f" (unreliable: {record.result.disturbed})" if record.result.disturbed else ""
    if not record.alone:
        return f"{_effect_on_the_stack(record)}{unreliable}"
    in_turn = ", in turn with the baseline" if record.confirmed else ""
    return f"{_effect(record.result, record.comparison, by)}{in_turn}{unreliable}"


def _effect_on_the_stack(record: TrialRecord) -> str:
    shown = verdict_shown(record)
    if shown in (None, Verdict.NO_DIFFERENCE):
        return effect_words(record)
    return f"{effect_words(record, format_interval)}, {shown}"


def _name(record: TrialRecord) -> str:
    """A candidate's name; of one that failed also that it was tried with others."""
    return record.candidate.name if record.result.measured else record.label


def _effect(result: TrialResult, comparison: Comparison | None, by: Yardstick | None) -> str:
    if comparison is None:
        return MISSING
    if by is not None and not by.goal.by_time:
        return by.effect(result, comparison)
    if comparison.verdict is Verdict.NO_DIFFERENCE:
        return comparison.verdict.value
    return f"{format_interval(comparison)} {comparison.verdict}"


def _stack_effect(stack: StackRecord, by: Yardstick | None) -> str:
    if stack.pending:
        return stack.result.reason
    if not stack.result.measured:
        return format_outcome(stack.result)
    return f"{_effect(stack.result, stack.comparison, by)}{f', {how_confirmed(stack)}' if stack.settings else ''}"


def _workload_line(facts: Facts) -> str:
    workload = facts.workload
    loop = "training" if workload.mode is Mode.TRAIN else "inference"
    device = f"{workload.device_name} ({workload.device})" if facts.on_cuda else "the CPU"
    parameters = format_count(workload.parameters)
    return f"{workload.model}, {parameters} parameters, {loop} on {device}, batch: {workload.batch_text}"


def _baseline_line(baseline: BaselineRecord) -> str:
    step, rate = format_ms(baseline.step_ms), format_rate(baseline.samples_per_s)
    memory, noise = format_bytes(baseline.result.peak_reserved_bytes), noise_words(baseline)
    return f"{step} per step, {rate}, {memory} reserved, {noise}"


def _settings_text(stack: StackRecord) -> str:
    return ", ".join(format_setting(key, value) for key, value in stack.settings.items()) or "no settings"


# --- the summary ----------------------------------------------------------------------------------------------


def print_summary(state: SessionState, file: TextIO, catalog: Catalog) -> None:
    """The ranked recommendations, the stack, the other trials and the skipped recipes, as text."""
    for title, body in _sections(state, catalog):
        print_text(Group(Text(f"\n{title}", style="bold"), Padding(body, (0, 0, 0, 2), expand=False)), file)


def print_text(text: RenderableType, file: TextIO) -> None:
    """Print text as it is, never as markup; where there is no terminal, plain and 100 columns wide."""
    width = None if file.isatty() else PLAIN_WIDTH
    console = Console(file=file, width=width, markup=False, emoji=False, highlight=False)
    if file.isatty():
        console.print(_Shown(text))
        return
    with console.capture() as capture:
        console.print(_Shown(text))
    file.writelines(f"{line.rstrip()}\n" for line in capture.get().splitlines())


class _Shown:
    """A text whose control characters are shown; rich's own, for colours, are not in the text."""

    def __init__(self, text: RenderableType) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._text, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """An empty table without frames; the columns named in ``right`` hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", no_wrap=column in right, overflow="fold"
        )
    return made


def _sections(state: SessionState, catalog: Catalog) -> Iterator[tuple[str, RenderableType]]:
    """What a person decides by comes first, what it rests on later."""
    if state.baseline:
        yield "Result", Text(plain(verdict(state)))
    if warnings := [plain(text) for text in caveats(state)]:
        yield "Read this first", Text("\n".join(warnings), style="yellow")
    if state.stack and (state.stack.settings or state.stack.dropped):
        yield "Together", _stack(state, state.stack)
    if state.recommendations:
        yield _RANKED[state.goal.objective], Group(_ranked(state), *_remarks(state, catalog))
    if front := pareto_rows(state):
        yield "Speed against memory", _pareto(state, front)
    if points := sweep_of(state):
        yield "Batch sizes", _sweep(state, points)
    if state.findings:
        yield "Found in your source", _findings(state)
    if state.baseline:
        yield "Baseline", Text("\n".join(map(plain, _baseline_lines(state, state.baseline))))
    if others := _others(state):
        yield "Other trials", _trials(others, state, catalog)
    if rows := habit_rows(state):
        yield "Habits, way by way", _habits(rows)
    if groups := untried(state):
        yield "Not tried", _pairs(("reason", "what"), ((group.reason, _names(group)) for group in groups))


def _baseline_lines(state: SessionState, baseline: BaselineRecord) -> Iterator[str]:
    """The figures, what bounds the step, and what of the surroundings a person should know; a line for each."""
    yield _baseline_line(baseline)
    result = baseline.result
    if energy := energy_words(result):
        yield f"{energy}, of the whole GPU"
    if result.gpu is not None and result.gpu.samples:
        yield f"GPU meanwhile: {gpu_sentence(result.gpu)}"
    profile = state.facts.profile if state.facts else None
    if profile is not None:
        before, after = map(roof_text, roof_shares(state))
        told = " → ".join(filter(None, (before, after)))
        yield from filter(None, (bound_sentence(profile), f"Matrix-product rate: {told}." if told else ""))
        yield from filter(None, (clock_warning(profile.clock),))
    if baseline.cpu_step_ms is not None and baseline.cpu_step_ms < baseline.step_ms:
        yield cpu_sentence(baseline)
    yield from result.notes


def _ranked(state: SessionState) -> Table:
    energy = ("energy",) if state.goal.objective is Objective.ENERGY else ()
    made = table("", "recommendation", "speed-up", "step", "memory", *energy, "numerics", "stack", right=("step",))
    for column in made.columns:
        column.no_wrap = column.header not in ("recommendation", "numerics")
    own_j = state.baseline.result.energy_j_per_sample if state.baseline else None
    for item in state.recommendations:
        record = own_figures(item.record)
        mark, shown = _MARKS[bool(record.result.disturbed), record.confirmed], verdict_shown(record)
        made.add_row(
            str(item.rank),
            Text(plain(record.candidate.name)),
            Text(f"{effect_words(record)}{mark}", style=_STYLES[shown] if shown else ""),
            format_ms(record.step_ms),
            _memory(record, state.baseline),
            *(format_change(record.result.energy_j_per_sample, own_j) for _ in energy),
            format_class(record.numerics),
            _membership(item, state),
        )
    return made


def _remarks(state: SessionState, catalog: Catalog) -> Iterator[Text]:
    """What the marks of the ranking mean, and what a person has to know of single recommendations."""
    records = [own_figures(item.record) for item in state.recommendations]
    if any(record.confirmed for record in records):
        yield Text("* measured again, in turn with the baseline", style="dim")
    if any(_membership(item, state) == "ask" for item in state.recommendations):
        yield Text("ask: it changes what is computed, so it enters the stack with --allow changed only", style="dim")
    for record in records:
        for remark in _remarks_of(record, state, catalog):
            yield Text(plain(f"{record.candidate.name}: {remark}"), style="dim")


def _remarks_of(record: TrialRecord, state: SessionState, catalog: Catalog) -> Iterator[str]:
    if record.result.disturbed:
        yield f"unreliable (!): {record.result.disturbed}"
    if record.numerics and record.numerics.worse_than_declared:
        yield f"numerics {format_numerics(record.numerics)}: {record.numerics.text}"
    if record.break_even_steps != 0:
        yield format_repayment(record.break_even_steps)
    yield from shown_by(record, state, catalog)
    yield from own_notes(record.result, state)


def _sweep(state: SessionState, points: Sequence[SweepPoint]) -> Group:
    made = table(*HEADINGS, right=HEADINGS[:-1])
    for row in sweep_rows(points):
        made.add_row(*(plain(cell) for cell in row))
    mode = state.facts.workload.mode if state.facts else Mode.TRAIN
    advice = [item.why for item in state.recommendations if item.record.candidate.recipe == BATCH_SIZE]
    return Group(made, *(Text(plain(text)) for text in (*sweep_caveats(state), sweep_sentence(points, mode), *advice)))


def _pareto(state: SessionState, rows: Iterable[tuple[str, ...]]) -> Group:
    made = table(*PARETO_HEADINGS, right=PARETO_HEADINGS[1:])
    for row in rows:
        made.add_row(*(Text(plain(cell)) for cell in row))
    return Group(made, Text(pareto_sentence(state)))


def _memory(record: TrialRecord | StackRecord, baseline: BaselineRecord | None) -> str:
    before = baseline.result.peak_reserved_bytes if baseline else None
    return format_bytes_change(record.result.peak_reserved_bytes, before)


def _membership(item: Recommendation, state: SessionState) -> str:
    decision = state.decisions.get(item.record.candidate.recipe)
    if item.in_stack:
        return "yes"
    if decision is not None:
        return decision.value
    return "ask" if item.needs_consent else "no"


def _change(text: Callable[[float | None], str], before: float | None, after: float | None) -> str:
    """A figure of the stack, after the baseline's as it was timed beside it."""
    return text(after) if before is None else f"{text(before)} → {text(after)}"


def _stack(state: SessionState, stack: StackRecord) -> Group:
    figures = [_stack_effect(stack, state.yardstick)] if stack.settings or stack.pending else ["none"]
    if stack.settings and stack.result.measured:
        figures += [
            f"{_change(format_ms, stack.baseline_step_ms, stack.step_ms)} per step",
            _change(format_rate, stack.baseline_samples_per_s, stack.samples_per_s),
            f"memory {_memory(stack, state.baseline)}",
            f"numerics {format_numerics(stack.numerics)}",
        ]
    lines = [Text(plain(format_setting(key, value))) for key, value in stack.settings.items()]
    verified = [Text(plain(f"the export: {verified_words(state.verification)}"))] if state.verification else []
    dropped = [Text(plain(f"left out: {name} ({reason})"), style="dim") for name, reason in stack.dropped.items()]
    shown = stack.comparison.verdict if stack.comparison else Verdict.FAILED
    style = _STYLES[Verdict.FASTER if stack_helps(state) else shown]
    return Group(*lines, Text(plain(", ".join(figures)), style=style), *verified, *dropped)


def _others(state: SessionState) -> list[TrialRecord]:
    """The trials that are in no other table."""
    told = {item.record.candidate.name for item in state.recommendations}
    if sweep_of(state):
        told |= {
            name for name, record in state.trials.items() if record.candidate.recipe == BATCH_SIZE and record.alone
        }
    return [record for record in tried(state) if record.candidate.name not in told]


def _trials(records: Iterable[TrialRecord], state: SessionState, catalog: Catalog) -> Table:
    made = table("trial", "result")
    for record in records:
        result, shown = _result(record, state, catalog), verdict_shown(record)
        made.add_row(Text(plain(_name(record))), Text(plain(result), style=_STYLES[shown] if shown else ""))
    return made


def _result(record: TrialRecord, state: SessionState, catalog: Catalog) -> str:
    """A trial's effect, with the figure also inside the noise, and what else a person has to know of it."""
    effect = trial_effect(record, state.yardstick)
    if verdict_shown(record) is Verdict.NO_DIFFERENCE:
        undecided = Verdict.NO_DIFFERENCE.value
        effect = effect.replace(undecided, f"{undecided}: {format_interval(record.own_effect)}", 1)
    remarks = [*shown_by(record, state, catalog)]
    if record.numerics and record.numerics.worse_than_declared:
        remarks.append(f"numerics {format_numerics(record.numerics)}")
    recipe = catalog.recipes.get(record.candidate.recipe)
    if recipe is not None and recipe.expensive:  # why compiling was worth no more: graph breaks, compiled again
        remarks += own_notes(record.result, state)
    return "; ".join((effect, *remarks))


def _habits(rows: Iterable[HabitRow]) -> Table:
    made = table("habit", "way", "its phase", "step", "share", "memory", right=("its phase", "step", "share", "memory"))
    for row in rows:
        figures = (format_ms(row.phase_ms), format_ms(row.step_ms), format_percent(row.share, digits=1))
        made.add_row(row.habit, format_way(row), *figures, format_bytes(row.memory_bytes))
    return made


def _findings(state: SessionState) -> Table:
    made = table("where", "what", "instead", "measured")
    for finding in state.findings:
        told = (finding.place, finding.what, finding.advice, price_text(finding, state))
        made.add_row(*(Text(plain(text)) for text in told))
    return made


def _names(group: Untried) -> str:
    return ", ".join(filter(None, (format_names(group.candidates), *group.recipes)))


def _pairs(columns: tuple[str, str], pairs: Iterable[tuple[str, str]]) -> Table:
    made = table(*columns)
    for left, right in pairs:
        made.add_row(Text(plain(left)), Text(plain(right)))
    return made
