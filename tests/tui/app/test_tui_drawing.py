"""How often the app draws: once for many events, at once for a key, and the footer only when its keys change."""

import asyncio
import threading
from collections import Counter

import pytest
import tui_histories as histories
from stopped_clock import Clock
from textual.widget import Widget
from tui_pilot import driven, make_app, press, screen_text, settle, tell, until

from advisor.experiment import events
from advisor.experiment.state import SessionState
from advisor.export.format import Offer
from advisor.tui import main_screen
from advisor.tui.views import VIEWS
from advisor.tui.views.export import ExportView
from advisor.tui.widgets.lines import KeyFooter
from advisor.tui.widgets.table import Table

INTERVAL_S = 0.5
NAME = histories.RUNNING


def footer_keys(app) -> list[str]:
    """The actions of the keys that the footer lists."""
    return [key.action for key in app.base_screen.query_one(KeyFooter).keys]


@pytest.fixture
def counted(monkeypatch) -> Counter[str]:
    """How often views and the footer are drawn from now on."""
    counts: Counter[str] = Counter()

    def count(cls, name) -> None:
        real = getattr(cls, name)

        def counting(self, *args, **kwargs):
            counts[f"{cls.__name__}.{name}"] += 1
            return real(self, *args, **kwargs)

        monkeypatch.setattr(cls, name, counting)

    for view in VIEWS:
        count(view, "show")
        count(view, "show_live")
    count(KeyFooter, "render")
    count(Table, "_render_cell")
    return counts


async def test_events_that_pour_in_are_drawn_together_and_the_last_of_them_always(counted, monkeypatch) -> None:
    monkeypatch.setattr(main_screen, "TICK_S", 3600.0)  # the clock draws too
    async with driven(histories.to_trials(), hold=True, draw_interval_s=INTERVAL_S) as (pilot, app, _control):
        await press(pilot, "3")
        counted.clear()
        clock = asyncio.get_running_loop()
        begin = clock.time()
        for step in range(40):
            app.post_event(events.TrialActivity(NAME, f"block {step}"))
            await pilot.pause(0.02)
        most = (clock.time() - begin) / INTERVAL_S + 2
        assert 1 <= counted["TrialsView.show_live"] <= most
        await settle(pilot)
        assert counted["TrialsView.show_live"] <= most + 1
        assert not counted["TrialsView.show"], "nothing else of the view has changed"
        assert "block 39" in screen_text(app).splitlines()[-2]


async def test_a_table_that_comes_back_or_gets_the_focus_draws_no_cell_again(counted) -> None:
    async with driven(histories.whole()) as (pilot, _app, _control):
        await press(pilot, "3", "1", "tab", "tab")
        counted.clear()
        await press(pilot, "3", "1", "tab", "tab")
        assert counted["Table._render_cell"] == 0


async def test_the_clock_and_the_running_trial_redraw_no_whole_view(counted) -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, _control):
        for view in VIEWS:
            await press(pilot, view.number)
            await tell(pilot, events.TrialStarted(NAME, ""))
            counted.clear()
            block, progress = events.BlockTimed(NAME, 110.0), events.ProgressMade(0.7, 50.0)
            await tell(pilot, events.TrialActivity(NAME, f"measuring {view.id}"), block, progress)
            name = type(app.view).__name__
            assert counted[f"{name}.show"] == 0
            assert f"measuring {view.id}" in screen_text(app), "the line of the status has it in every view"
            await tell(pilot, events.TrialMeasured(histories.ZERO_GRAD))
            assert counted[f"{name}.show"] == 1


async def test_the_footer_is_built_again_only_when_its_keys_change(counted) -> None:
    async with driven(histories.to_trials(), hold=True) as (pilot, app, _control):
        await press(pilot, "3", "down")
        counted.clear()
        for step in range(10):
            await tell(pilot, events.TrialActivity(NAME, f"block {step}"))
        assert counted["TrialsView.show_live"] >= 10
        assert counted["KeyFooter.render"] == 0
        await press(pilot, "1")
        assert counted["KeyFooter.render"] >= 1
        assert "retry" in footer_keys(app)
        assert "log" not in footer_keys(app)


@pytest.mark.parametrize("focused", [True, False])
async def test_the_footer_follows_what_can_be_done_also_without_focus(focused) -> None:
    async with driven([], hold=True) as (pilot, app, _control):
        await press(pilot, "4")
        assert "save" not in footer_keys(app)
        app.app_focus = focused
        await settle(pilot)
        await tell(pilot, *histories.to_trials())
        assert "save" in footer_keys(app)


async def test_while_a_block_is_measured_the_screen_is_painted_once_a_second_and_never_laid_out(monkeypatch) -> None:
    """A trial shares the machine with the app: what pours in, the clock, the spinner and the gauges go together."""
    now = 0.0
    app, control = make_app(histories.measuring(), hold=True, gauges=True, clock=lambda: now)
    app.animation_level = "full"
    monkeypatch.setattr(main_screen, "TICK_S", 3600.0)  # here the seconds pass by themselves
    async with app.run_test(size=(120, 36)) as pilot:
        await settle(pilot)
        shown, seen = list[bool](), list[str]()
        refresh = Widget.refresh

        def refreshing(self, *regions, layout=False, **how):
            shown.append(layout)
            return refresh(self, *regions, layout=layout, **how)

        monkeypatch.setattr(Widget, "refresh", refreshing)
        for view in "13":
            await press(pilot, view)
            for second in range(4):
                shown.clear()
                for _ in range(10):
                    app.post_event(events.BlockTimed(app.context.state.running, 15.0 + second))
                    app.post_event(events.ProgressMade(0.7, 60.0))
                await settle(pilot)
                assert not shown, "nothing is painted before the second is over"
                now += 1.0
                app.base_screen.tick()
                await settle(pilot)
                assert shown
                assert not any(shown), "the screen is laid out again"
                seen.append(screen_text(app).splitlines()[-2])
        assert len({line.strip()[0] for line in seen}) == len({line[2:] for line in seen}) == len(seen)
        control.cancel()


async def test_the_time_left_runs_down_while_the_session_says_nothing() -> None:
    """74 s are left when the session last told so; then it tells nothing for 40 s."""
    seconds = 0.0
    async with driven(histories.to_trials(), hold=True, clock=lambda: seconds) as (pilot, app, _control):
        for view in "1234":
            await press(pilot, view)
            assert "1:14 left" in screen_text(app), "in every view"
        seconds = 40.0
        await until(pilot, lambda: "0:34 left" in screen_text(app))
        assert "warming up  40 s" in screen_text(app)
        await tell(pilot, events.TrialStarted("combination, in turns", "", 12.0))
        seconds = 45.0
        await until(pilot, lambda: "5 of about 12 s" in screen_text(app))
        seconds = 500.0
        await until(pilot, lambda: "0:01 left" in screen_text(app))
        assert "460 of about 12 s" in screen_text(app)


async def test_the_time_left_stands_still_while_the_session_is_held() -> None:
    clock = Clock()
    async with driven(histories.to_trials(), hold=True, clock=clock) as (pilot, app, _control):
        clock.now = 10.0
        assert app.context.left_s == 64.0
        await tell(pilot, events.Paused(True))
        clock.now = 300.0
        assert app.context.left_s == 74.0, "the session's own figure"
        await tell(pilot, events.Paused(False))
        clock.now = 320.0
        assert app.context.left_s == 54.0


async def test_the_preview_of_a_running_session_is_written_once_for_a_result(monkeypatch) -> None:
    written: list[str] = []
    real = ExportView._written_preview

    def preview(view: ExportView, chosen: Offer, state: SessionState) -> tuple[str, str]:
        assert threading.current_thread() is not threading.main_thread(), "keys would wait for it"
        assert all("SessionState" not in worker.description for worker in view.app.workers), "it takes time"
        written.append(chosen.id)
        return real(view, chosen, state)

    monkeypatch.setattr(ExportView, "_written_preview", preview)
    async with driven(histories.to_trials(), hold=True) as (pilot, _app, _control):
        await press(pilot, "4")
        assert written == ["settings"]
        written.clear()
        await press(pilot, "1", "4", "1", "4")
        assert written == []
        await tell(pilot, events.ProgressMade(0.7, 60.0))
        assert written == [], "the clock changes nothing in a file"
        await tell(pilot, events.TrialMeasured(histories.AUTOCAST))
        assert written == ["settings"]
