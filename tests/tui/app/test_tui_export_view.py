"""The export view: formats, names, files that exist, failures."""

from pathlib import Path

import pytest
import tui_histories as histories
from textual.widgets import Input, OptionList
from tui_pilot import SIZES, SMALL, choose, driven, pane_text, press, screen_text, settle

from advisor.export.formats import format_of
from advisor.tui.views.export import offers


async def test_a_saved_file_is_verified_and_a_report_is_not(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    async with driven(histories.whole()) as (pilot, app, control):
        await press(pilot, "4", "s")
        await app.workers.wait_for_complete()
        await settle(pilot)
        assert [call for call in control.calls if call[0] == "verify"] == [("verify", "tuned.yaml")]
        assert app.context.state.verification.speedup == 1.9
        assert "confirmed: 1.90x in a plain loop" in " ".join(screen_text(app).split())
        await choose(pilot, "markdown")
        await press(pilot, "s")
        assert [call[0] for call in control.calls].count("verify") == 1


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        (["o"], "tuned.yaml"),
        (["f", *["backspace"] * 10, *"other.yaml", "enter"], "other.yaml"),
        (["escape", "s", "s"], None),
        (["down", "o"], None),
    ],
)
async def test_a_file_that_exists_is_overwritten_only_when_asked_for(tmp_path, monkeypatch, keys, written) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tuned.yaml").write_text("mine")
    async with driven(histories.whole(), size=SMALL) as (pilot, app, _control):
        await press(pilot, "4")
        assert not app.view.can("overwrite")
        await press(pilot, "s")
        assert "tuned.yaml exists already" in screen_text(app)
        assert "o Overwrite" in screen_text(app)
        await press(pilot, *keys)
        assert app.context.saved == [path for path in (written,) if path]
        assert (Path("tuned.yaml").read_text() == "mine") is (written != "tuned.yaml")
        assert not app.view.can("overwrite") or not written


async def test_the_own_config_is_shown_changed_and_only_a_copy_is_written(tmp_path) -> None:
    own = tmp_path / "train.yaml"
    own.write_text("amp: false  # [red]\n")
    async with driven(histories.whole(), config_path=str(own)) as (pilot, app, _control):
        await press(pilot, "4")
        assert "+perf_advisor:" in screen_text(app)
        assert "# [red]" in screen_text(app)
        path = app.query_one("#path", Input)
        path.value = str(own)
        await press(pilot, "s")
        assert not app.view.can("overwrite")
        assert "train.yaml is your own config" in screen_text(app)
        assert own.read_text() == "amp: false  # [red]\n"

        path.value = str(tmp_path / "mine.yaml")
        await press(pilot, "s")
        assert (tmp_path / "mine.yaml").exists()
        assert app.context.saved == [str(tmp_path / "mine.yaml")]
        await pilot.press("f")
        assert path.has_focus
        await pilot.press("escape")
        assert app.query_one("#formats", OptionList).has_focus

        path.value = "/nowhere/[/].yaml"
        await press(pilot, "s")
        assert "the folder /nowhere/[ does" in screen_text(app).splitlines()[-2], "a failure is a notice"
        assert len(app.context.saved) == 1


async def test_keys_that_come_before_the_app_has_drawn_write_to_the_path_of_their_format(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    async with driven(histories.whole()) as (pilot, app, _control):
        await press(pilot, "4")
        formats = app.query_one("#formats", OptionList)
        formats.highlighted = formats.get_option_index("markdown")  # its message is still on its way
        app.view.action_save()
        assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
        await press(pilot, "f", "x", "escape", "up", "down")
        assert app.query_one("#path", Input).value == "x", "a path that was typed stays with its format"


async def test_of_a_long_file_the_beginning_is_shown(monkeypatch) -> None:
    monkeypatch.setattr(type(format_of("json")), "preview", lambda self, _: "\n".join(map(str, range(5000))))

    async with driven(histories.whole()) as (pilot, app, _control):
        await press(pilot, "4", "end")
        shown = pane_text(app.query_one("#preview")).splitlines()
        assert [line.strip() for line in shown[-2:]] == ["199", "… and 4,800 more lines: s writes all"]


async def test_nothing_to_export_before_the_baseline() -> None:
    async with driven(histories.start(), hold=True) as (pilot, app, _control):
        await press(pilot, "4", "s")
        assert "nothing to export" in screen_text(app)
        assert app.context.saved == []


@pytest.mark.parametrize("size", SIZES)
async def test_every_format_is_seen_and_the_list_is_walked_by_j_and_k(size) -> None:
    async with driven(histories.whole(), size=size, config_path="train.yaml") as (pilot, app, _control):
        found = offers(app.context.outputs)
        await press(pilot, "4")
        shown = screen_text(app)
        assert [offer.title for offer in found if offer.title not in shown] == []
        await press(pilot, "j", "j", "k")
        assert app.view.chosen == found[1]
        words = found[1].description.split()
        assert [word for word in words if word not in screen_text(app)] == [], "what it is for is told too"


async def test_the_steps_after_the_export_have_the_name_that_was_typed() -> None:
    async with driven(histories.whole(), size=SMALL) as (pilot, app, _control):
        await press(pilot, "4")
        assert '2  in your script: tuning = advisor.load("tuned.yaml")' in screen_text(app)
        await press(pilot, "f", *"mine", "escape")
        assert 'tuning = advisor.load("mine")' in screen_text(app)
