"""The export view: formats, names, files that exist, failures."""

from __future__ import annotations

from pathlib import Path

import pytest
import tui_histories as histories
from textual.widgets import Button, Input, OptionList
from tui_fakes import CANNOT_WRITE, FakeExporter
from tui_pilot import SIZES, SMALL, drive, screen_text, settle

from advisor.export.format import Offer
from advisor.export.formats import FORMATS
from advisor.records.outputs import Outputs
from advisor.tui.screens import OverwriteScreen
from advisor.tui.views.export import ExportView


async def test_a_saved_file_is_verified_and_a_report_is_not(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def check(pilot, app, control) -> None:
        app.context.exporter.verifies = True
        await pilot.press("5", "s")
        await settle(pilot)
        await app.workers.wait_for_complete()
        await settle(pilot)
        assert [call for call in control.calls if call[0] == "verify"] == [("verify", "tuned.yaml")]
        assert app.context.state.verification.speedup == 1.9
        assert "verified: 1.9x in a plain loop" in " ".join(screen_text(app).split())
        app.query_one(ExportView).choose("report")
        await settle(pilot)
        await pilot.press("s")
        await settle(pilot)
        assert [call[0] for call in control.calls].count("verify") == 1

    await drive(histories.whole(), check)


async def test_what_a_command_makes_is_shown_and_cannot_be_saved(monkeypatch) -> None:
    offers = (Offer("report", "Compiled model", "model.pt2", by_command=True), Offer("settings", "Settings", "t.yaml"))
    monkeypatch.setattr(FakeExporter, "formats", lambda self: offers)

    async def check(pilot, app, control) -> None:
        await pilot.press("5")
        await settle(pilot)
        assert not app.query_one("#save-row").display
        assert "writes model.pt2" not in screen_text(app)
        assert app.view.check_action("save", ()) is False
        assert "Save" not in screen_text(app).splitlines()[-1]
        await pilot.press("s")
        await settle(pilot)
        assert not app.context.exporter.saved
        await pilot.press("down")
        await settle(pilot)
        assert app.query_one("#save-row").display

    await drive(histories.whole(), check, toasts=False)


async def test_enter_on_a_format_chooses_it_and_stays() -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("5", "down", "enter")
        await settle(pilot)
        assert app.query_one("#formats", OptionList).has_focus
        assert app.view.chosen.id == "config"
        assert "+amp: bfloat16" in screen_text(app)

    await drive(histories.whole(), check, toasts=False)


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        (["o"], True),
        (["right", "enter"], True),
        (["escape"], False),
        (["right", "right", "enter"], False),
    ],
)
async def test_a_file_that_exists_is_overwritten_only_when_asked_for(tmp_path, monkeypatch, keys, written) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tuned.yaml").write_text("mine")

    async def check(pilot, app, control) -> None:
        await pilot.press("5", "s")
        await settle(pilot)
        assert isinstance(app.screen, OverwriteScreen)
        assert "tuned.yaml exists already." in screen_text(app)
        await pilot.press(*keys)
        await settle(pilot)
        assert not isinstance(app.screen, OverwriteScreen)
        assert bool(app.context.exporter.saved) is written
        assert (Path("tuned.yaml").read_text() == "mine") is not written
        assert app.query_one("#formats", OptionList).has_focus

    await drive(histories.whole(), check, toasts=False, size=SMALL)


async def test_another_name_is_offered_and_waits_in_the_path(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tuned.yaml").write_text("mine")

    async def check(pilot, app, control) -> None:
        await pilot.press("5", "s")
        await settle(pilot)
        assert app.focused is app.screen.query_one("#rename", Button)
        await pilot.press("enter")
        await settle(pilot)
        path = app.query_one("#path", Input)
        assert path.has_focus
        assert path.value == "tuned-2.yaml"
        await pilot.press("enter")
        await settle(pilot)
        assert Path("tuned-2.yaml").exists()
        assert Path("tuned.yaml").read_text() == "mine"

    await drive(histories.whole(), check, toasts=False, size=SMALL)


async def test_of_the_own_config_nothing_is_asked(tmp_path) -> None:
    own = tmp_path / "train.yaml"
    own.write_text("lr: 0.1\n")

    async def check(pilot, app, control) -> None:
        await pilot.press("5")
        app.query_one("#path", Input).value = str(own)
        await pilot.press("s")
        await settle(pilot)
        assert not isinstance(app.screen, OverwriteScreen)

    await drive(histories.whole(), check, toasts=False, config_path=str(own))


async def test_export_previews_and_saves(tmp_path) -> None:
    async def check(pilot, app, control) -> None:
        exporter = app.context.exporter
        assert isinstance(exporter, FakeExporter)
        await pilot.press("5", "down")
        await settle(pilot)
        assert "+amp: bfloat16" in screen_text(app)
        assert "# [red]" in screen_text(app)
        app.clear_notifications()
        app.query_one("#path", Input).value = str(tmp_path / "mine.yaml")
        await pilot.press("s")
        await settle(pilot)
        assert (tmp_path / "mine.yaml").exists()
        assert "Your config, patched saved" in screen_text(app)
        await pilot.press("f")
        assert app.query_one("#path", Input).has_focus
        await pilot.press("escape")
        assert app.query_one("#formats", OptionList).has_focus

    await drive(histories.whole(), check)


async def test_an_export_that_fails_is_a_toast() -> None:
    async def check(pilot, app, control) -> None:
        app.context.exporter.error = CANNOT_WRITE
        app.clear_notifications()
        await pilot.press("5", "s")
        await settle(pilot)
        assert "Choose another path." in screen_text(app)
        assert "[/] read-only" in screen_text(app)

    await drive(histories.whole(), check)


async def test_nothing_to_export_before_the_baseline() -> None:
    async def check(pilot, app, control) -> None:
        await pilot.press("5", "s")
        await settle(pilot)
        assert "nothing to export" in screen_text(app)
        assert app.context.exporter.saved == []

    await drive(histories.start(), check, hold=True)


@pytest.mark.parametrize("size", SIZES)
async def test_every_format_is_seen_and_the_list_is_walked_by_j_and_k(size, monkeypatch) -> None:
    offers = tuple(offer for each in FORMATS if (offer := each.offer(Outputs(config_path="train.yaml"))))
    monkeypatch.setattr(FakeExporter, "formats", lambda self: offers)

    async def check(pilot, app, control) -> None:
        await pilot.press("5")
        await settle(pilot)
        shown = screen_text(app)
        assert [offer.title for offer in offers if offer.title not in shown] == []
        await pilot.press("j", "j", "k")
        await settle(pilot)
        assert app.view.chosen == offers[1]
        words = offers[1].description.split()
        assert [word for word in words if word not in screen_text(app)] == [], "what it is for is told too"

    await drive(histories.whole(), check, size=size, toasts=False)
