"""The result at the top of the overview: its first line, what stands in its way, and the waterfall of the stack."""

# ruff: noqa: RUF001 - the en dash of an interval

import math
from dataclasses import replace

import pytest
import tui_histories as histories
from sample_session import several_gpus_history
from tui_fakes import FakeExporter
from tui_pilot import SIZES, SMALL, driven, press, screen_text

from advisor.experiment import events
from advisor.experiment.ranking import INSTRUMENTED
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.records import Comparison, Outcome, ParetoPoint, TargetSpec
from advisor.report.charts import Axis, Bar, Bars, Tone
from advisor.report.waterfall import Step, step_words, waterfall, waterfall_chart
from advisor.tui.context import Context
from advisor.tui.text import widest_effect
from advisor.tui.views.advice_text import effect_facts, nothing_helped
from advisor.tui.views.headline import headline
from advisor.tui.views.overview_facts import baseline_facts, waterfall_text
from advisor.tui.views.trial_rows import build_rows
from advisor.tui.views.trial_text import selection_text
from advisor.tui.widgets.status import stack_text


@pytest.fixture
def state() -> SessionState:
    return SessionState.of(histories.contributed())


def test_the_best_setting_that_changes_results_says_so_and_how_it_is_allowed() -> None:
    state = SessionState.of(histories.start())
    state.apply(events.BaselineMeasured(histories.BASELINE))
    state.apply(events.TrialMeasured(histories.BATCH))
    state.apply(events.Ranked(histories.recommendations((histories.BATCH,))))
    first, then = headline(state).plain.splitlines()
    assert f"the best opt-in setting so far: {histories.BATCH.candidate.name}" in first
    assert "changes results" in then
    state.apply(events.SessionFinished(False, 12.0))
    assert "All that applies was tried" in headline(state).plain.splitlines()[-1]


def test_a_session_that_goes_on_says_that_its_trials_are_kept() -> None:
    state = SessionState.of(histories.start())
    assert "12 trials of this session are kept" in headline(state, 12).plain
    assert "kept" not in headline(SessionState.of(histories.whole()), 12).plain


def test_the_speed_of_several_gpus_is_part_of_the_result_and_each_has_its_row() -> None:
    told = "2 GPUs, ddp: 1.82x (1.79–1.85) one GPU, efficiency 91 %"
    *before, found, last = several_gpus_history()
    assert told in headline(SessionState.of([*before, found, last])).plain.splitlines()
    nothing = replace(found, record=replace(found.record, best=""))
    assert "2 GPUs" not in headline(SessionState.of([*before, nothing])).plain, "more may come"
    assert "nothing on 2 GPUs was faster" in headline(SessionState.of([*before, nothing, last])).plain

    row = replace(found.record.rows[1], name="ddp, parallel.bucket_cap_mb: 100")
    state = SessionState.of([*before, replace(found, record=replace(found.record, rows=(row,))), last])
    state.apply(events.TrialStarted(row.trial, "x.log"))
    state.apply(events.TrialEnded(row.trial, Outcome.MEASURED, step_ms=33.0))
    (cells,) = [built.cells for built in build_rows(state) if built.key == row.trial]
    assert cells["name"].plain == "2 GPUs"
    assert cells["effect"].plain == "1.82x (1.79–1.85) ddp, parallel.bucket_cap_mb: 100, efficiency 91 %"
    details = selection_text(row.trial, state).plain
    for part in ("against one GPU 1.82x (1.79–1.85)", "exposed communication 3 %, 1.10 ms", "memory of a GPU 5.00 GiB"):
        assert part in details


# --- the waterfall --------------------------------------------------------------------------------------------


def test_the_waterfall_leads_from_the_baseline_to_the_stack(state) -> None:
    steps = waterfall(state)
    assert steps[0].start == 1.0
    assert [step.start for step in steps[1:]] == [step.end for step in steps[:-1]]
    assert steps[-1].end == pytest.approx(state.stack.comparison.speedup)
    assert (steps[-1].name, steps[-1].key) == ("together", "")
    assert [step.name for step in steps[:2]] == ["autocast", "channels_last"], "as they were added"
    assert steps[0].alone == histories.AUTOCAST.comparison
    record = state.trials[histories.LAST.candidate.name]
    wide = replace(record.contribution, ci_low=0.2, ci_high=9.0)
    state.trials[record.candidate.name] = replace(record, contribution=wide)
    assert wide.is_open
    assert waterfall(state)[-1].name == "not attributed", "one by one they are not known"
    assert step_words(Step("not attributed", 1.0, 13.3)) == "+13.3x", "as many digits as the stack has"


@pytest.mark.parametrize("width", [40, 74, 114, 200])
def test_each_contribution_is_told_with_its_interval(state, width) -> None:
    text = waterfall_text(waterfall_chart(state), width).plain
    for told in ("+1.41x (1.39–1.43)", "same", "2.35x (2.32–2.37)", "+1.03x more than one by one"):
        assert told in text
    assert ("alone 1.12x" in text) is (width >= 114)
    if width >= 74:
        assert max(map(len, text.splitlines())) <= width


async def test_bars_that_would_pass_the_stack_end_at_it_and_the_panel_says_so(state) -> None:
    product = math.prod(step.end / step.start for step in waterfall(state) if step.key)
    stack = replace(state.stack, comparison=Comparison(product / 2, product / 2.1, product / 1.9))

    measured = histories.contributed()
    for history, subtitle, together in (
        (measured, "none", True),
        ([*measured, events.StackMeasured(stack)], "they overlap", False),
    ):
        async with driven(history) as (_pilot, app, _control):
            assert subtitle in str(app.screen.query_one("#waterfall").border_subtitle or "none")
            assert ("together" in screen_text(app)) is together


def test_a_stack_that_is_unclear_has_no_interval_in_the_waterfall(state) -> None:
    state.apply(events.StackMeasured(replace(state.stack, comparison=Comparison(1.21, 0.06, 23.94))))
    *_, before, last = waterfall_text(waterfall_chart(state), 114).plain.splitlines()
    assert "unclear" in last
    assert "23.94" not in last
    assert "█" not in last, "its length would say something"
    assert "together" not in before


def test_a_contribution_that_is_unclear_moves_no_bar(state) -> None:
    record = state.trials[histories.COMPILE.candidate.name]
    state.apply(events.TrialMeasured(replace(record, contribution=Comparison(0.9, 0.1, 9.0))))
    [step] = [step for step in waterfall(state) if step.name == "compile"]
    assert step.end == step.start
    [line] = [
        line for line in waterfall_text(waterfall_chart(state), 114).plain.splitlines() if line.startswith("compile")
    ]
    assert "unclear" in line


def test_the_waterfall_has_the_memory_of_each_setting_on_the_others(state) -> None:
    rest = {key: value for key, value in state.stack.settings.items() if key != "compile.mode"}
    peak = state.stack.result.peak_reserved_bytes
    state.apply(events.CombinationMeasured(ParetoPoint("rest", rest, None, peak * 4 // 5)))
    lines = waterfall_text(waterfall_chart(state), 114).plain.splitlines()
    [compiled] = [line for line in lines if line.startswith("compile")]
    assert "memory +25 %" in compiled
    assert "memory -43 %" in lines[-1], "the stack against the baseline"
    item = next(item for item in state.recommendations if item.recipe == "compile")
    joined = replace(item, record=replace(item.record, settings=state.stack.settings))
    facts = dict(effect_facts(joined, Context(Request(TargetSpec("demo", ".")), FakeExporter(), state=state)))
    assert str(facts["Memory"]).endswith("(+25 %) on the stack")


def test_there_is_no_waterfall_without_a_contribution_or_a_stack() -> None:
    state = SessionState.of(histories.whole())
    assert waterfall_chart(state) is None
    assert waterfall(SessionState()) == []
    state.apply(events.Decided("compile", histories.Decision.REJECTED))
    assert waterfall(state) == []


def test_what_is_added_to_the_stack_stands_before_what_is_done_alone(state) -> None:
    (row,) = [row for row in build_rows(state) if row.key == histories.AUTOCAST.candidate.name]
    assert row.cells["effect"].plain == "+1.41x (1.39–1.43) on the stack"
    assert widest_effect(state.trials.values(), state.stack) > widest_effect(state.trials.values())


# --- never falsely calm ---------------------------------------------------------------------------------------


def test_the_first_line_is_the_result_then_its_cost_then_the_key(state) -> None:
    lines = headline(state).plain.splitlines()
    assert lines[0] == "2.35x faster: 32.6 ms → 13.9 ms a step, confirmed  (2.32–2.37)"
    huge = replace(state.stack, comparison=Comparison(33.0, 2.0, 600.0))
    assert headline(replace(state, stack=huge)).plain.startswith("At least 2.00x faster: 32.6 ms → ")
    assert [text for text in ("4 settings", "memory 5.20 GiB (-43 %)", "close", "44.0 s") if text not in lines[1]] == []
    assert lines[-2].startswith("5 exports it")
    assert lines[-1].startswith("All that applies was tried"), "what more time would bring"


def test_the_end_says_what_more_time_would_bring(state) -> None:
    skipped = histories.failed("tf32", "precision.float32_matmul", "medium", Outcome.SKIPPED, "it needs about 17 s")
    state.apply(events.TrialMeasured(skipped))
    told = headline(state).plain.splitlines()[-1]
    assert told.startswith("1 candidate had no time: R tries them; 3 shows each trial")
    running = SessionState.of(histories.to_trials())
    assert "had no time" not in headline(running).plain


def warned(state: SessionState) -> str:
    text = headline(state)
    assert any("$warning" in str(span.style) for span in text.spans), text.plain
    return text.plain


def test_where_nothing_could_be_judged_the_first_line_says_so_and_what_to_do() -> None:
    failed = SessionState.of(histories.judged_nothing())
    assert warned(failed).startswith("Nothing could be judged: nothing that was tried could be used.\n")
    wide = replace(histories.ZERO_GRAD, comparison=Comparison(1.1, 0.8, 1.5))
    noisy = warned(SessionState.of([*histories.judged_nothing(), events.TrialMeasured(wide)]))
    assert noisy.startswith("It is unclear whether anything helps: the most promising, zero_grad")
    assert "give it more time" in noisy
    assert warned(SessionState.of([events.SessionFinished(True, 1.0)])).startswith("Nothing was measured")
    calm = [*histories.judged_nothing(), events.TrialMeasured(histories.ZERO_GRAD)]
    assert headline(SessionState.of(calm)).plain.startswith("Nothing that was tried is measurably faster.")


def test_a_small_effect_has_a_small_bar() -> None:
    bars = (
        Bar("baseline", 1.0, 1.0, "33 ms", Tone.BASELINE, is_mark=True),
        Bar("stack", 1.0, 1.01, "1.01x", Tone.STACK),
    )
    assert waterfall_text(Bars("", "", Axis("", 1.0, 1.01), bars), 76).plain.count("█") == 1


def test_a_stack_within_the_noise_is_no_success(state) -> None:
    same = replace(state.stack, comparison=Comparison(1.01, 0.99, 1.02))
    state.apply(events.StackMeasured(same))
    assert warned(state).startswith("Same: 1.01x (0.99–1.02)")
    assert "exports it" not in headline(state).plain
    assert "Your own settings are as good" in headline(state).plain
    state.apply(events.StackMeasured(replace(same, comparison=Comparison(1.01, 0.91, 1.12))))
    assert "as good" not in headline(state).plain, "nothing is concluded where all is noise"


def test_a_stack_whose_interval_leaves_everything_open_is_not_called_as_good() -> None:
    unclear = events.StackMeasured(replace(histories.STACK, comparison=Comparison(1.24, 0.08, 19.66)))
    told = warned(SessionState.of([*histories.whole(), unclear]))
    assert told.startswith("Unclear: 1.24x (may be over 10x off)")
    assert told.count("1.24x") == 1, "an interval that says nothing is told once, in words"
    assert "End other programs and run again, or give it more time: key + adds a minute." in told
    over = SessionState.of([*histories.whole(), unclear])
    assert stack_text(over, wide=True).plain == "stack unclear"
    assert "view 5 exports it" not in nothing_helped(over)
    told = warned(SessionState.of([*histories.to_trials(), unclear]))
    assert told.endswith("The search goes on. Key 3 shows each trial."), "nothing is concluded before the end"


def test_another_batch_size_is_told_in_samples() -> None:
    state = SessionState.of(histories.whole())
    bigger = replace(state.stack, result=replace(state.stack.result, batch_size=256), step_ms=55.6)
    state.apply(events.StackMeasured(bigger))
    assert headline(state).plain.startswith(
        "2.35x faster, at a batch of 256, not 64: 1,963 → 4,604 samples/s, confirmed"
    )


def test_all_rejected_does_not_promise_what_else_helps() -> None:
    recipes = [item.record.candidate.recipe for item in histories.recommendations()]
    told = [*histories.whole(), *(events.Decided(recipe, histories.Decision.REJECTED) for recipe in recipes)]
    shown = headline(SessionState.of(told)).plain
    assert shown.startswith("The stack is empty")
    assert "what else helps" not in shown
    assert "u takes a decision back" in shown


def test_the_step_that_the_result_is_against_is_told_where_the_baseline_ran_otherwise_alone() -> None:
    stack = SessionState.of(histories.whole()).stack
    beside = replace(stack, baseline_step_ms=90.9)
    assert "In turn" not in dict(baseline_facts(histories.BASELINE, None, replace(stack, baseline_step_ms=32.6)))
    for other in (stack, replace(beside, confirmed=False)):
        assert "In turn" not in dict(baseline_facts(histories.BASELINE, None, other))
    rows = dict(baseline_facts(histories.BASELINE, None, beside))
    assert rows["In turn"] == "90.9 ms beside the stack; the result is against this"


def test_figures_of_two_runs_are_not_mixed() -> None:
    rows = dict(baseline_facts(histories.BASELINE, None))
    assert str(rows["Spread"]).startswith("32.3 ms to 33.3 ms")
    once = replace(histories.BASELINE.result, event_step_ms=(32.61, 32.61, 32.61))
    rows = dict(baseline_facts(replace(histories.BASELINE, result=once), None))
    assert str(rows["Spread"]) == "32.6 ms, single steps of the first run"
    other = replace(histories.BASELINE, step_ms=5.52)
    rows = dict(baseline_facts(other, None))
    assert "Spread" not in rows
    assert str(rows["First run"]) == "32.6 ms when its steps were timed singly (32.3 ms to 33.3 ms)"


async def test_a_profile_that_failed_is_not_said_to_have_had_no_time() -> None:
    history = [event for event in histories.judged_nothing() if not isinstance(event, events.FactsFound)]
    ended = events.TrialEnded(INSTRUMENTED, Outcome.TIMED_OUT, "no result after 16 s (profiling)")
    async with driven([*history[:-1], ended, history[-1]], size=SMALL, toasts=False) as (pilot, app, _control):
        await press(pilot, "2")
        assert "Not known: timed out: no result after 16 s (profiling)." in screen_text(app)


@pytest.mark.parametrize("size", SIZES)
async def test_after_a_failed_build_nothing_is_waited_for(size) -> None:
    async with driven(histories.failure(), size=size, toasts=False) as (pilot, app, _control):
        await pilot.press("escape")
        for view in "12345":
            await press(pilot, view)
            shown = " ".join(screen_text(app).split())
            assert ("Not known" if view != "1" else "It defines: make, train.") in shown, shown
            for word in ("being loaded", "being measured", "are chosen once", "appear here", "No operators yet"):
                assert word not in shown
