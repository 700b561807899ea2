"""The report for people, in Markdown or as one HTML file: the result first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import advisor
from advisor.experiment.objective import Yardstick, figure, format_figure
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.export.evidence import (
    baseline_blocks,
    caveats,
    clock_section,
    pairs,
    profile_blocks,
    roof_blocks,
    roof_text,
    sweep_section,
    waits_blocks,
)
from advisor.export.figures import MEASURED_ONCE, effect_words, own_figures, verdict_shown, verified_words
from advisor.export.markup import (
    Block,
    Bullets,
    Code,
    Document,
    Inline,
    Listing,
    Paragraph,
    Section,
    Table,
    markdown,
    page,
)
from advisor.export.pareto import pareto_section
from advisor.export.settings_file import hardware_line
from advisor.figures.formatting import (
    MISSING,
    format_break_even,
    format_bytes,
    format_bytes_change,
    format_change,
    format_energy,
    format_found,
    format_interval,
    format_ms,
    format_names,
    format_noise,
    format_numerics,
    format_outcome,
    format_pending,
    format_percent,
    format_rate,
    format_ratio,
    format_repayment,
    format_seconds,
    format_setting,
    format_verdict,
    format_way,
    format_worth,
    printable,
)
from advisor.figures.sweep import RECIPE as BATCH_SIZE
from advisor.figures.sweep import knee_of
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    BaselineRecord,
    Facts,
    Finding,
    HabitRow,
    Hardware,
    Mode,
    Objective,
    Recommendation,
    StackRecord,
    TrialRecord,
    TrialResult,
    Value,
)
from advisor.report.conclusions import (
    Untried,
    candidates_tried,
    count_untried,
    own_notes,
    roof_shares,
    stack_helps,
    sweep_of,
    tried,
    untried,
)
from advisor.report.habits import habit_rows, price_text


def markdown_report(state: SessionState, request: Request, catalog: Catalog) -> str:
    """The report of a session, also of one that has not ended, as Markdown."""
    return printable(markdown(_document(state, request, catalog)))


def html_report(state: SessionState, request: Request, catalog: Catalog) -> str:
    """The same report as one HTML file that needs nothing else."""
    return printable(page(_document(state, request, catalog)))


def _document(state: SessionState, request: Request, catalog: Catalog) -> Document:
    return Document(
        f"perf-advisor: {request.target.command}",
        verdict(state),
        tuple(_sections(state, request, catalog)),
        f"Made by perf-advisor {advisor.__version__}.",
    )


# --- the verdict ----------------------------------------------------------------------------------------------


def verdict(state: SessionState) -> str:
    """The session in one or two sentences."""
    if state.failure:
        ended = f"The session could not go on: {state.failure.message}. {state.failure.hint}".replace("..", ".")
        return f"{ended} Until then: {_result_sentence(state, state.baseline)}" if state.baseline else ended
    if state.baseline is None:
        return "Nothing has been measured."
    interrupted = state.finished is None or state.finished.cancelled
    remark = " The session did not run to its end: this is what was measured until then." if interrupted else ""
    return _result_sentence(state, state.baseline) + remark


def _result_sentence(state: SessionState, baseline: BaselineRecord) -> str:
    where = f" on {hardware_line(state.hardware)}" if state.hardware else ""
    stack, by = state.stack, Yardstick(state.goal, baseline)
    if stack is not None and stack.pending:
        return _pending_sentence(state, stack, where)
    if stack is None or not stack_helps(state):
        return _no_stack_sentence(state, by, where)
    how = "confirmed in turns with the baseline" if stack.confirmed else MEASURED_ONCE
    return f"{_effect_sentence(state, stack, by, where)}, {how}: {_before_and_tuned(stack, by)}."


def _pending_sentence(state: SessionState, stack: StackRecord, where: str) -> str:
    if not stack.settings:
        return f"No setting is left in the combination for {_subject(state)}{where}: {stack.result.reason}."
    return f"There is no figure for {_subject(state)}{where} with what is left: {format_pending(stack)}."


def _by_figure(stack: StackRecord, by: Yardstick) -> bool:
    """Whether the settings together are told by memory or energy, not by their speed."""
    gain = by.gain(stack.result, stack.comparison)
    return not by.goal.by_time and gain is not None and gain.proven


def _before_and_tuned(stack: StackRecord, by: Yardstick) -> str:
    if not _by_figure(stack, by):
        before_ms = stack.baseline_step_ms or by.baseline.step_ms
        return f"{format_ms(before_ms)} a step before, {format_ms(stack.step_ms)} tuned"
    objective, results = by.goal.objective, (by.baseline.result, stack.result)
    before, tuned = (format_figure(objective, figure(objective, result)) for result in results)
    return f"{before}{' a sample' if objective is Objective.ENERGY else ''} before, {tuned} tuned"


def _effect_sentence(state: SessionState, stack: StackRecord, by: Yardstick, where: str) -> str:
    """What the settings together do by the goal, as a sentence without its end."""
    count = len(stack.settings)
    if _by_figure(stack, by):
        settings = f"{count} settings together" if count != 1 else "one setting"
        sentence = f"With {settings} {_subject(state)} {by.effect(stack.result, stack.comparison)}{where}"
    else:
        settings = f"{count} settings together make" if count != 1 else "One setting makes"
        sentence = f"{settings} {_subject(state)} {format_interval(stack.comparison)} as fast{where}"
    if not by.too_large:
        return sentence
    limit, own = format_bytes(state.goal.memory_limit_bytes), format_bytes(by.baseline.result.peak_reserved_bytes)
    return f"{sentence}, within the memory limit of {limit}, which the baseline exceeds ({own})"


def _no_stack_sentence(state: SessionState, by: Yardstick, where: str) -> str:
    records, goal = candidates_tried(state), state.goal
    count, helping = len(records), sum(_helps(record, by) for record in records)
    what = f"candidate{'s' * (count != 1)} tried for {_subject(state)}{where}"
    if not count:
        result = f"No candidate was tried for {_subject(state)}{where}"
    elif not any(record.result.measured for record in records):
        result = f"{f'Each of {count}' if count > 1 else 'The only'} {what} failed, with the reasons below"
    elif not helping:
        result = f"None of {count} {what} {goal.better()}" if count > 1 else f"The only {what} {goal.not_better()}"
    else:
        combined = "no settings were combined" if _nothing_combined(state) else f"together they {goal.not_better(2)}"
        result = f"{helping} of {count} {what} {goal.better(helping)}; {combined}"
    missed = count_untried(state)
    rest = f" {missed} {'more ' * bool(count)}could not be tried, with the reasons below." if missed else ""
    return f"{result}.{rest}"


def _helps(record: TrialRecord, by: Yardstick) -> bool:
    """Whether a candidate itself helps; nothing is known of one that was only measured with others."""
    return by.helps(record.result, record.comparison if record.alone else record.contribution)


def _nothing_combined(state: SessionState) -> bool:
    return state.stack is None or not (state.stack.settings or state.stack.dropped)


def _subject(state: SessionState) -> str:
    if state.facts is None:
        return "the workload"
    loop = "training" if state.facts.workload.mode is Mode.TRAIN else "inference"
    return f"{state.facts.workload.model} {loop}"


# --- the sections ---------------------------------------------------------------------------------------------


def _sections(state: SessionState, request: Request, catalog: Catalog) -> Iterator[Section]:
    """What a reader decides by comes first, what it rests on later."""
    yield from _section("Read this first", [Bullets(warnings)] if (warnings := tuple(caveats(state))) else [])
    if state.stack and (state.stack.settings or state.stack.dropped):
        yield from _section("The settings together", _stack(state, state.stack))
    if state.recommendations:
        yield from _section("Recommendations", _recommendations(state))
    yield from pareto_section(state)
    yield from sweep_section(state, _batch_advice(state, catalog))
    if state.source_files:
        yield from _section("Found in the source", _source(state))
    yield from _evidence(state, catalog)
    if state.hardware:
        yield Section("Hardware and versions", (_hardware(state.hardware, state.facts),))
    if state.baseline:
        yield Section("How the numbers were made", (Bullets(tuple(_method(state, request))),))


def _evidence(state: SessionState, catalog: Catalog) -> Iterator[Section]:
    profile = state.facts.profile if state.facts else None
    if state.baseline:
        yield from _section("Baseline", baseline_blocks(state.baseline, state.facts))
    if profile:
        yield from _section("Where the time goes", profile_blocks(profile))
        yield from _section("Efficiency", roof_blocks(state))
    yield from clock_section(state)
    if records := tried(state):
        yield from _section("All trials", _trials(records, state, catalog))
    habits = [_habits(rows, catalog)] if (rows := habit_rows(state)) else []
    yield from _section("Habits, way by way", [*habits, *(waits_blocks(profile) if profile else ())])
    if groups := untried(state):
        yield Section("Not tried", (_untried(groups, catalog),))


def _section(title: str, blocks: Iterator[Block] | Sequence[Block]) -> Iterator[Section]:
    """A section, unless there is nothing to say in it."""
    told = tuple(blocks)
    if told:
        yield Section(title, told)


# --- what is recommended --------------------------------------------------------------------------------------


def _stack(state: SessionState, stack: StackRecord) -> Iterator[Block]:
    if not stack.settings and stack.pending:
        yield Paragraph(f"None: {stack.result.reason}.")
    elif not stack.settings:
        yield Paragraph(f"None: together nothing {state.goal.better()}.")
    else:
        yield Listing(Settings(stack.settings).to_yaml(), "yaml")
        yield from _stack_effect(state, stack)
    if stack.dropped:
        yield Paragraph("Left out of the combination:")
        yield Bullets(tuple(f"{key}: {reason}" for key, reason in stack.dropped.items()))


def _stack_effect(state: SessionState, stack: StackRecord) -> Iterator[Block]:
    if stack.pending:
        yield Paragraph(f"There is no figure for them: {stack.result.reason}.")
        return
    if stack.comparison is None:
        yield Paragraph(f"They could not be measured together: {format_outcome(stack.result)}")
        return
    rows = tuple(_before_and_after(state, stack))
    yield Table(("", "Before", "Tuned", "Change"), rows, frozenset({"Before", "Tuned", "Change"}))
    pays = f"Start-up: {format_repayment(stack.break_even_steps)}."
    how = "in turns with the baseline (A B B A)" if stack.confirmed else "once, in a trial of their own"
    yield Paragraph(f"Measured {how}, noise {format_noise(stack.comparison.noise_floor)}. {pays}")
    if stack.numerics:
        yield Paragraph(f"Numerics {format_numerics(stack.numerics)}: {stack.numerics.text}.")
    if state.verification:
        yield Paragraph(f"The exported file: {verified_words(state.verification)}.")
    if notes := own_notes(stack.result, state):
        yield Bullets(notes)


def _before_and_after(state: SessionState, stack: StackRecord) -> Iterator[tuple[Inline, ...]]:
    baseline, result = state.baseline, stack.result
    own = baseline.result if baseline else None
    step_ms = stack.baseline_step_ms or (baseline.step_ms if baseline else None)
    rate = stack.baseline_samples_per_s or (baseline.samples_per_s if baseline else None)
    yield "Step", format_ms(step_ms), format_ms(stack.step_ms), format_change(stack.step_ms, step_ms)
    yield "Throughput", format_rate(rate), format_rate(stack.samples_per_s), format_ratio(stack.comparison)
    yield _memory_row("Peak memory", own.peak_reserved_bytes if own else None, result.peak_reserved_bytes)
    energy = (own.energy_j_per_sample if own else None, result.energy_j_per_sample)
    if any(energy):
        yield "Energy a sample", format_energy(energy[0]), format_energy(energy[1]), format_change(energy[1], energy[0])
    before, after = roof_shares(state)
    if before or after:
        yield "Efficiency", roof_text(before) or MISSING, roof_text(after) or MISSING, ""


def _memory_row(name: str, before: int | None, after: int | None) -> tuple[Inline, ...]:
    return name, format_bytes(before), format_bytes(after), format_bytes_change(after, before)


def _recommendations(state: SessionState) -> Iterator[Block]:
    by_energy = state.goal.objective is Objective.ENERGY
    energy = ("Energy",) if by_energy else ()
    headings = ("Rank", "What", "Setting", "Speed-up", "Memory", *energy, "Numerics", "Pays back", "Remark")
    rows = tuple(_recommendation(item, state, with_energy=by_energy) for item in state.recommendations)
    if state.goal.objective is not Objective.THROUGHPUT:
        then = "; then what is faster in as much memory" if state.goal.objective is Objective.MEMORY else ""
        yield Paragraph(f"What {state.goal.better()}, best first{then}.")
    yield Table(headings, rows, frozenset({"Rank", "Speed-up", "Memory", *energy}))
    reasons: dict[str, list[str]] = {}
    for item in state.recommendations:
        reasons.setdefault(item.why, []).append(item.title)
    yield Bullets(tuple(f"{', '.join(titles)}: {why}" for why, titles in reasons.items() if why))


def _recommendation(item: Recommendation, state: SessionState, *, with_energy: bool) -> tuple[Inline, ...]:
    record, baseline = own_figures(item.record), state.baseline
    decision = state.decisions.get(record.candidate.recipe)
    energy = [_energy_change(record, baseline)] if with_energy else []
    remarks = ["in the stack"] if item.in_stack else []
    if decision is not None:
        remarks.append(f"you {decision} it")
    elif item.needs_consent:
        remarks.append("changes the results or the training: needs your consent")
    return (
        str(item.rank),
        item.title,
        _settings_code(record.candidate.settings),
        effect_words(record),
        _memory_change(record, baseline),
        *energy,
        format_numerics(record.numerics),
        format_break_even(record.break_even_steps) if record.alone else MISSING,
        "; ".join([*remarks, *_how(record)]),
    )


def _how(record: TrialRecord) -> Iterator[str]:
    """How a figure came about, where it is more or less than one trial of the setting alone."""
    if not record.alone:
        yield f"measured with the stack, {len(record.settings)} settings together"
    if record.confirmed:
        yield "in turn with the baseline"
    if record.result.disturbed:
        yield f"unreliable: {record.result.disturbed}"


def _batch_advice(state: SessionState, catalog: Catalog) -> str:
    """What the recipe says of the size at the knee, when that is not the one in use."""
    knee = knee_of(sweep_of(state))
    if knee is None or state.facts is None or knee == state.facts.workload.batch_size:
        return ""
    return catalog.why(BATCH_SIZE, state.facts, knee)


# --- the trials -----------------------------------------------------------------------------------------------


def _trials(records: Sequence[TrialRecord], state: SessionState, catalog: Catalog) -> Iterator[Block]:
    baseline = state.baseline
    own_energy_j = baseline.result.energy_j_per_sample if baseline else None
    with_energy = own_energy_j is not None and any(record.result.energy_j_per_sample for record in records)
    energy = ["Energy"] if with_energy else []
    headings = ("What", "Setting", "Verdict", "Speed-up", "Step", "Memory", *energy, "Warm-up", "Numerics", "Remark")
    rows = tuple(_trial(record, baseline, catalog, with_energy=with_energy) for record in records)
    yield Table(headings, rows, frozenset({"Speed-up", "Step", "Memory", "Energy", "Warm-up"}))
    shown = tuple(_shown_besides(records, state, catalog))
    if shown:
        yield Paragraph("What they have shown besides their speed:")
        yield Bullets(shown)


def _trial(
    record: TrialRecord, baseline: BaselineRecord | None, catalog: Catalog, *, with_energy: bool
) -> tuple[Inline, ...]:
    record, shown = own_figures(record), verdict_shown(record)
    energy = [_energy_change(record, baseline)] if with_energy else []
    return (
        _name(record.candidate.recipe, catalog),
        _settings_code(record.candidate.settings),
        f"{format_verdict(record) if shown else MISSING}{', in turn' if record.confirmed else ''}",
        effect_words(record, format_interval) if record.result.measured else MISSING,
        format_ms(record.step_ms),
        _memory_change(record, baseline),
        *energy,
        format_seconds(record.result.warmup_s),
        format_numerics(record.numerics),
        _remark(record),
    )


def _remark(record: TrialRecord) -> str:
    """Why a trial failed, and what to do; of one that measured, what a reader of its figures has to know."""
    remarks = [_failure(record.result)] if not record.result.measured else []
    if record.candidate.already_on:
        remarks.append(format_worth(record))
    if not record.alone:
        remarks.append(f"measured with the stack, {len(record.settings)} settings together")
    if record.result.disturbed:
        remarks.append(f"unreliable: {record.result.disturbed}")
    return "; ".join(filter(None, remarks))


def _failure(result: TrialResult) -> str:
    return " ".join(f"{result.reason} {result.hint}".split())


def _shown_besides(records: Sequence[TrialRecord], state: SessionState, catalog: Catalog) -> Iterator[str]:
    """What recipes say after their trials, numerics that are worse than declared, and notes such as graph breaks."""
    for record in records:
        numerics = record.numerics
        worse = f"numerics: {numerics.text}" if numerics and numerics.worse_than_declared else ""
        after = catalog.after(state.facts, record) if state.facts else ""
        told = [text for text in (after.rstrip("."), worse, *own_notes(record.result, state)) if text]
        if told:
            yield f"{record.candidate.name}: {'; '.join(told)}."


def _untried(groups: Sequence[Untried], catalog: Catalog) -> Table:
    rows = tuple((group.reason, _names(group, catalog)) for group in groups)
    return Table(("Why not", "What"), rows)


def _names(group: Untried, catalog: Catalog) -> str:
    titles = [_name(recipe, catalog) for recipe in group.recipes]
    return ", ".join(filter(None, [format_names(group.candidates), *titles]))


# --- habits and the source ------------------------------------------------------------------------------------


def _habits(rows: Sequence[HabitRow], catalog: Catalog) -> Table:
    headings = ("Habit", "Way", "Its phase", "Step", "Share of the step", "Memory")
    cells = tuple(
        (
            _name(row.habit, catalog),
            format_way(row),
            format_ms(row.phase_ms),
            format_ms(row.step_ms),
            format_percent(row.share, digits=1),
            format_bytes(row.memory_bytes),
        )
        for row in rows
    )
    return Table(headings, cells, frozenset(headings[2:]))


def _source(state: SessionState) -> Iterator[Block]:
    read = ", ".join(state.source_files)
    yield Paragraph(f"{format_found(len(state.findings), len(state.source_files))}: {read}. It was read, not run.")
    if state.source_problems:
        yield Bullets(state.source_problems)
    if state.findings:
        rows = tuple(_finding(finding, state) for finding in state.findings)
        yield Table(("Where", "Line", "What it does", "Instead", "Measured"), rows)


def _finding(finding: Finding, state: SessionState) -> tuple[Inline, ...]:
    return finding.place, Code(finding.text), finding.what, finding.advice, price_text(finding, state)


# --- small parts ----------------------------------------------------------------------------------------------


def _name(recipe_id: str, catalog: Catalog) -> str:
    recipe = catalog.recipes.get(recipe_id)
    return recipe.title if recipe else recipe_id


def _settings_code(settings: dict[str, Value]) -> Code:
    return Code(", ".join(format_setting(key, value) for key, value in settings.items()))


def _memory_change(record: TrialRecord, baseline: BaselineRecord | None) -> str:
    before = baseline.result.peak_reserved_bytes if baseline else None
    return format_bytes_change(record.result.peak_reserved_bytes, before)


def _energy_change(record: TrialRecord, baseline: BaselineRecord | None) -> str:
    before = baseline.result.energy_j_per_sample if baseline else None
    return format_change(record.result.energy_j_per_sample, before)


def _hardware(hardware: Hardware, facts: Facts | None) -> Table:
    rows: list[tuple[str, Inline]] = [
        (f"GPU {gpu.index}", f"{gpu.name}, {format_bytes(gpu.memory_total_bytes)}, driver {gpu.driver_version}")
        for gpu in hardware.gpus
    ]
    if hardware.gpu_note:
        rows.append(("GPU", hardware.gpu_note))
    host = hardware.host
    rows.append(("CPU", f"{host.cpu}, {host.usable_cores} of {host.logical_cores} logical cores usable"))
    rows += [("Memory", format_bytes(host.memory_total_bytes)), ("System", host.system)]
    rows += list(facts.versions.items()) if facts else []
    return pairs(rows)


def _method(state: SessionState, request: Request) -> Iterator[str]:
    on_cuda = state.facts is not None and state.facts.on_cuda
    noise = format_noise(state.baseline.noise_floor if state.baseline else None)
    yield "Every trial ran in a process of its own, with the same seed and the same batches."
    yield (
        "A step's time is wall time per step over blocks of back-to-back steps, after a warm-up until the steps were "
        "steady. The warm-up is reported apart; the steps after which a slower start has paid back follow from it."
    )
    yield (
        "A speed-up is the ratio of samples per second to the baseline's, with the 95 % bootstrap interval of the "
        f"ratio of medians. It counts only when the whole interval clears the noise floor, here {noise}: what "
        "identical runs differ by."
    )
    yield from _ranking_rule(state)
    yield from _repeats(state)
    yield (
        "Memory is the peak that PyTorch's allocator reserved on the GPU."
        if on_cuda
        else "Memory is the peak resident set of the trial's process."
    )
    yield "In the tables of recommendations and trials, memory and energy a sample are changes against the baseline."
    yield "Numerics compare the first losses, outputs and weights with the baseline's; close is what rounding explains."
    if state.facts and state.facts.profile:
        yield "The phases come from a separate pass with waits between them; their sum can exceed the step."
    if state.finished:
        yield (
            f"The session took {format_seconds(state.finished.session_s)} of a budget of "
            f"{format_seconds(request.budget_s)}."
        )


def _ranking_rule(state: SessionState) -> Iterator[str]:
    """How the objective ranks and combines, where it is not the speed-up; and what the memory limit did."""
    by = state.yardstick
    kept = format_percent(state.goal.keep_speed)
    rules = {
        Objective.LATENCY: "The objective is latency: what makes a step shorter, so that a larger batch never counts.",
        Objective.MEMORY: (
            f"The objective is memory: the smallest peak whose speed, with its whole interval, is {kept} of the "
            "baseline's or more. Of two that take as much, the faster counts."
        ),
        Objective.ENERGY: "The objective is energy: joules a sample, of the whole GPU while it is timed.",
    }
    if rule := rules.get(state.goal.objective):
        floors = {Objective.MEMORY: by.saving_floor, Objective.ENERGY: by.energy_floor} if by else {}
        floor = floors.get(state.goal.objective)
        yield f"{rule} A difference counts above {format_percent(floor, digits=1)}." if floor else rule
    if state.goal.memory_limit_bytes is not None:
        limit = format_bytes(state.goal.memory_limit_bytes)
        yield f"What took more than the memory limit of {limit} is neither recommended nor in the combination."


def _repeats(state: SessionState) -> Iterator[str]:
    if state.stack and state.stack.comparison and state.stack.comparison.paired:
        yield "The settings together were measured alternately with the baseline (A B B A), so that drift cancels."
    if any(record.confirmed and record.alone for record in state.trials.values()):
        yield (
            "What is marked as in turn lay within reach of the noise and was measured again, alternately with the "
            "baseline; the first trial, which was picked for its figure, is left out of it."
        )
    if any(record.candidate.already_on for record in tried(state)):
        yield (
            "A setting that was on already was switched off for its trial; what it is worth is how much faster the "
            "step is with it."
        )
