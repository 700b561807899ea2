"""Pictures of the app, most of them in the tier of the app; those of the views are also taken by default.

`pytest tests/tui --snapshot-update` takes them again; look at each before committing.
"""

import pytest
import tui_histories as histories
from sample_session import cpu_history
from textual.widgets import Input
from tui_pilot import LARGE, SMALL, make_app, press, settle

from advisor.tui.views import VIEWS
from advisor.tui.widgets.lines import GaugeStrip

PICTURES = {
    "result": (histories.contributed, []),
    "profile": (histories.timed, ["2"]),
    "trials": (histories.contributed, ["3"]),
    "export": (histories.whole, ["4", "down"]),
    "waiting": (histories.start, []),
    "measuring": (histories.measuring, []),
    "decided": (histories.decided, ["down"]),
    "unfolded": (histories.whole, [*["down"] * 3, "right"]),
    "memory": (histories.by_memory, []),
    "cpu": (cpu_history, []),
    "judged_nothing": (histories.judged_nothing, []),
    "failure": (histories.failure, []),
    "help": (histories.whole, ["question_mark"]),
}
SMALL_TOO = ("profile", "measuring", "export", "unfolded")
OF_VIEWS = [view.title.lower() for view in VIEWS]
CASES = [
    *((name, LARGE) for name in OF_VIEWS),
    *(pytest.param(name, LARGE, marks=pytest.mark.app) for name in PICTURES if name not in OF_VIEWS),
    *(pytest.param(name, SMALL, marks=pytest.mark.app) for name in SMALL_TOO),
]


@pytest.mark.parametrize(("name", "size"), CASES, ids=lambda one: one if isinstance(one, str) else f"{one[0]}x{one[1]}")
def test_picture(snap_compare, name, size, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    (tmp_path / "tuned.yaml").touch()
    history, keys = PICTURES[name]
    app, _ = make_app(history())

    async def play(pilot) -> None:
        await settle(pilot)
        if name in ("result", "trials"):
            app.query_one(GaugeStrip).show_reading(*histories.READING)
        for entry in app.query(Input):
            entry.cursor_blink = False  # a picture of a slow moment would be without it
        await press(pilot, *keys)

    assert snap_compare(app, terminal_size=size, run_before=play)
