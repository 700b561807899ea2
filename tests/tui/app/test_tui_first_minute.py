"""The plan with its marks, copying, and what to do with an exported file."""

from datetime import datetime

import pytest
import tui_histories as histories
from tui_fakes import PYTHON, FakeExporter
from tui_pilot import SMALL, driven, press, screen_text, settle

from advisor.experiment import events
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.records import TargetSpec, Verification
from advisor.tui.context import Context
from advisor.tui.views.export import next_steps
from advisor.tui.views.overview_facts import doing_text, plan_text


def test_the_plan_marks_what_is_done_what_runs_and_what_comes():
    state, seen = SessionState(), []
    for event in histories.whole():
        state.apply(event)
        line = plan_text(state, 300.0).plain
        assert len(doing_text(state, SMALL[0] - 4)) <= SMALL[0] - 2, "one line on a narrow screen"
        if line and (not seen or seen[-1] != line):
            seen.append(line)
    assert seen[0].startswith("load ▶  baseline ·  leap ·  search ·  confirm ·   at most 5 min")
    assert any(line.startswith("load ✓  baseline ▶  leap ·") for line in seen)
    assert any("baseline ✓" in line and "search ▶" in line for line in seen)
    assert plan_text(state, 300.0).plain == ""


def test_the_plan_says_when_the_session_is_expected_to_end():
    context = Context(Request(TargetSpec("m:b", "/x")), FakeExporter())
    context.today = lambda: datetime(2026, 11, 22, 23, 59)
    assert context.expected_end is None
    for event in histories.to_trials():  # the last of them says that 74 s are left
        context.take(event)
    assert "   ends about 00:00" in plan_text(context.state, 300.0, context.expected_end).plain
    context.take(events.Held(True))
    assert "   at most 5 min" in plan_text(context.state, 300.0, context.expected_end).plain


async def test_the_plan_stands_on_the_overview_while_a_session_runs():
    """Panels that have nothing to tell yet do not stand in its way."""

    async with driven(histories.start(), hold=True, size=SMALL) as (pilot, app, _control):
        assert "baseline ▶" in screen_text(app)
        assert "Workload" in screen_text(app)
        assert "─ Baseline ─" not in screen_text(app)
        for event in histories.to_trials()[len(histories.start()) :]:
            app.post_event(event)
        await settle(pilot)
        assert "baseline ✓" in screen_text(app)
        assert "─ Baseline ─" in screen_text(app)


@pytest.mark.parametrize(
    ("keys", "copied"),
    [
        (["4", "y"], "with torch.autocast"),
        (["5", "down", "down", "y"], PYTHON.splitlines()[1]),
        (["3", "home", "down", "y"], "precision.autocast: bfloat16"),
    ],
)
async def test_y_copies_what_is_chosen(keys, copied):
    async with driven(histories.whole(), toasts=False) as (pilot, app, _control):
        await press(pilot, *keys)
        assert copied in app.clipboard
        assert "copied to the clipboard" in screen_text(app)


async def test_the_export_view_says_what_to_do_next_with_the_real_name():
    async with driven(histories.whole(), toasts=False) as (pilot, app, _control):
        await press(pilot, "5")
        assert 'tuning = advisor.load("tuned.yaml")' in screen_text(app)
        await press(pilot, "f", *"mine", "escape")
        assert 'tuning = advisor.load("mine")' in screen_text(app)


async def test_the_next_steps_can_be_read_to_their_end_on_a_narrow_screen():
    async with driven(histories.whole(), size=SMALL, toasts=False) as (pilot, app, _control):
        await press(pilot, "5")
        shown = screen_text(app)
        assert '2  in your script: tuning = advisor.load("tuned.yaml")' in shown
        assert "3  model, optimizer, loader = tuning.prepare(model, optimizer, loader)" in shown


def test_a_verified_export_and_inference_are_told():
    state = SessionState.of(histories.whole())
    state.apply(events.ExportVerified(Verification("here/tuned.yaml", 1.9, 26.3, 13.8, 1.97)))
    assert next_steps("tuned.yaml", (), state.verification).plain.startswith("✓ verified: 1.9x in a plain loop")
    state.apply(events.ExportVerified(Verification("here/tuned.yaml", problem="it fails")))
    told = next_steps("tuned.yaml", ("load it",), state.verification).plain
    assert told == "1  s writes tuned.yaml  ! not verified: it fails\n2  load it"
