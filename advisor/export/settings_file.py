"""The settings file: a flat YAML mapping for ``advisor.load``, with the measurements as comments."""

import datetime
from collections.abc import Iterator, Mapping

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_interval, format_ms, format_pending
from advisor.files.config_file import dumped
from advisor.recipe.settings import Settings
from advisor.records import StackRecord, TrialRecord, Value
from advisor.report.figures import effect_words, how_confirmed, measured_on, other_batch, stack_is_unclear
from advisor.report.rows import together_of
from advisor.report.several_gpus import comparison_of, gpus_to_start, launch_command
from advisor.report.verdict import no_result
from advisor.version import __version__


def settings_yaml(state: SessionState, settings: Mapping[str, Value], *, target: str = "", beside: str = "") -> str:
    """Settings as YAML text for ``Settings.from_yaml``: comment lines, then one ``key: value`` per line.

    The comments say where the figures come from, and the effect of each setting that was measured alone. ``beside`` is
    the patched config that has the other settings of the stack. Raises UsageError for a value that is not a setting.
    """
    checked = Settings(settings)
    header = list(_header(state, checked, target, beside))
    # Line ends, and characters that YAML refuses, would end a comment. They are replaced by blanks.
    header = ["".join(one if one.isprintable() else " " for one in f"# {line}").rstrip() for line in header]
    effects = {(trial.candidate.key, trial.candidate.value): trial for trial in state.trials.values()}
    entries = [_entry(key, value, effects) for key, value in checked.items()] or ["{}"]
    return "\n".join([*header, "", *entries]) + "\n"


def stack_line(stack: StackRecord, state: SessionState) -> str:
    """A stack's speed-up in one line: ``1.84x (1.80–1.88), confirmed``."""  # noqa: RUF002 - an interval
    effect = format_interval(stack.comparison) + other_batch(stack, state.baseline)
    return f"{'unclear, ' if stack_is_unclear(state) else ''}{effect}, {how_confirmed(stack, state)}"


def _header(state: SessionState, settings: Settings, target: str, beside: str) -> Iterator[str]:
    yield f"Made by perf-advisor {__version__} on {datetime.date.today().isoformat()}."
    if target:
        yield f"target: {target}"
    if state.hardware:
        yield f"hardware: {measured_on(state)}"
    if state.facts and state.facts.versions:
        yield "versions: " + ", ".join(f"{name} {version}" for name, version in state.facts.versions.items())
    stack = state.stack
    if beside and stack and stack.comparison:
        yield f"the settings that could not be written into {beside}"
        yield f"speed-up together with those in {beside}: {stack_line(stack, state)}"
    else:
        yield from _effect(state, settings)


def _effect(state: SessionState, settings: Settings) -> Iterator[str]:
    """The measured effect of the settings, or the reason for none."""
    stack, scaling = state.stack, state.scaling
    own = [f"step: {format_ms(state.baseline.step_ms)} before"] if state.baseline else []
    if scaling and settings and settings == scaling.all_settings:
        best = scaling.row(scaling.best)
        if best and (found := comparison_of(best)):
            yield f"speed-up on {scaling.gpus} GPUs over one GPU with its best settings: {format_interval(found)}"
        if gpus_to_start(state, settings) > 1:
            yield f"start: {launch_command(scaling)}"
    elif stack and stack.pending and settings == stack.settings:
        yield from (f"speed-up: not known: {format_pending(stack)}", *own)
    elif not settings:
        yield f"no settings: {no_result(state)[0]}"
    elif stack and stack.comparison and settings == stack.settings:
        if state.yardstick and not state.goal.by_time:
            yield f"objective {state.goal.objective}: {state.yardstick.effect(stack.result, stack.comparison)}"
        yield f"speed-up of these settings together: {stack_line(stack, state)}"
        if together := together_of(state):
            yield f"step: {format_ms(together.before_ms)} before, {format_ms(together.after_ms)} tuned"
    else:
        yield from ("speed-up: these settings were not measured together", *own)


def _entry(key: str, value: Value, effects: Mapping[tuple[str, Value], TrialRecord]) -> str:
    line, trial = dumped({key: value}, width=10_000).rstrip("\n"), effects.get((key, value))
    if trial is None or trial.comparison is None or "\n" in line:
        return line
    return f"{line}  # {'alone: ' if trial.alone else ''}{effect_words(trial)}"
