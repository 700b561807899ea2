"""Small, poor and busy terminals: no colour, sixteen colours, floods of log lines."""

import threading
import time
from statistics import median

import pytest
import tui_histories as histories
from rich.color import Color as RichColor
from rich.color import ColorSystem
from tui_pilot import LARGE, choose, driven, make_app, press, screen_text, settle

from advisor.experiment import events
from advisor.records import Outcome
from advisor.tui.views.result import TICKS
from advisor.tui.widgets.texts import LogTail


async def test_without_colour_every_state_is_in_words_or_signs(monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    told = {
        "1": ["confirmed", "faster: 26.3", "★", "☑", "☐", "failed"],
        "2": ["forward", "backward", "Compute-heavy"],
        "3": ["measured", "failed", "out of memory"],
        "4": ["Save"],
    }
    async with driven(histories.whole()) as (pilot, app, _control):
        for view, words in told.items():
            await press(pilot, view)
            for _, style, _ in (segment for line in app.screen._compositor.render_strips() for segment in line):
                for colour in (style.color, style.bgcolor) if style else ():
                    if colour is not None and colour.triplet is not None:
                        assert len(set(colour.triplet)) == 1, f"{colour} is not grey"
            assert [word for word in words if word not in screen_text(app)] == []


async def test_the_accent_is_no_error_where_there_are_sixteen_colours(monkeypatch) -> None:
    """The terminal says how many it has; what it is sent for the accent is none of the reds."""
    monkeypatch.delenv("COLORTERM", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    app, _ = make_app(histories.whole())
    async with app.run_test(size=LARGE):
        sent = {
            name: RichColor.parse(app.theme_variables[name]).downgrade(ColorSystem.STANDARD).number
            for name in ("accent", "success", "warning", "error", "primary", "foreground", "background")
        }
        assert len(set(sent.values())) == len(sent), sent


def luminance(colour: RichColor) -> float:
    """The relative luminance of a colour, as WCAG 2 defines it."""
    parts = [part / 255 for part in colour.get_truecolor()]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


async def test_every_text_is_legible_in_all_themes_also_after_another() -> None:
    async with driven(histories.whole()) as (pilot, app, _control):
        for name in (*app.available_themes, "advisor"):
            app.theme = name
            await settle(pilot)
            shown = [
                part for line in app.screen._compositor.render_strips() for part in line if part.text.strip(" ▏─│╭╮╰╯")
            ]
            assert len(shown) > 100
            for text, style, _ in shown:
                dark, light = sorted((luminance(style.color), luminance(style.bgcolor)))
                assert (light + 0.05) / (dark + 0.05) >= 3, (name, text)


def test_ticks_differ_in_their_signs() -> None:
    assert len({sign for sign, _ in TICKS.values()}) == len(TICKS)


@pytest.mark.timed
async def test_five_thousand_log_lines_a_second_do_not_delay_a_key(tmp_path) -> None:
    log = tmp_path / "trial.log"
    log.write_text("begins\n")
    over, rate = threading.Event(), 5000

    def flood() -> None:
        with log.open("a", buffering=1) as file:
            for turn in range(10**6):
                file.write("".join(f"step {turn * rate // 20 + line}: loss 0.123\n" for line in range(rate // 20)))
                if over.wait(1 / 20):
                    return

    history = [*histories.to_trials(), events.TrialStarted(histories.RUNNING, str(log))]

    async def answer_s(pilot) -> float:
        answers = []
        for key in "1323132313":
            started = time.perf_counter()
            await pilot.press(key)
            answers.append(time.perf_counter() - started)
            await pilot.pause(0.1)
        return median(answers)

    async with driven(history, hold=True) as (pilot, app, _control):
        quiet_s = await answer_s(pilot)
        writer = threading.Thread(target=flood)
        writer.start()
        try:
            flooded_s = await answer_s(pilot)
            assert app.query_one(LogTail).line_count <= 401
            await settle(pilot)
            assert "loss 0.123" in screen_text(app)
            assert log.stat().st_size > 2 * 64 * 1024  # the end of it is read, and no more
            assert flooded_s < 3 * quiet_s + 0.1
        finally:
            over.set()
            writer.join()


async def test_a_trial_may_end_while_its_log_is_open(tmp_path) -> None:
    log = tmp_path / "trial.log"
    log.write_text("the first line\n")
    history = [*histories.to_trials(), events.TrialStarted(histories.RUNNING, str(log))]

    async with driven(history, hold=True) as (pilot, app, _control):
        await pilot.press("3")
        await choose(pilot, histories.RUNNING)
        assert "the first line" in screen_text(app)
        with log.open("a") as file:
            file.write("the last line\n")
        app.post_event(events.TrialEnded(histories.RUNNING, Outcome.MEASURED, "", 20.0, 6 * histories.GIB, 4.0))
        app.post_event(events.TrialMeasured(histories.BATCH))
        app.post_event(events.TrialStarted("combination: the rest", str(tmp_path / "next.log")))
        await settle(pilot)
        app.query_one(LogTail).poll()
        await settle(pilot)
        assert app.view.selected == histories.RUNNING, "the person picked it"
        assert "the last line" in screen_text(app)
        log.unlink()  # as a temporary folder goes with its session
        app.query_one(LogTail).poll()
        await settle(pilot)
        assert "There is no log in /" in screen_text(app)
