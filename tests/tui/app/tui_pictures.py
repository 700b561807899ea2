"""Pictures of the app: the history that is played, the keys that are pressed, and how a picture is taken."""

import tui_histories as histories
from sample_session import cpu_history
from textual.widgets import Input
from tui_facts import READING
from tui_fakes import make_app
from tui_pilot import press, settle

from advisor.tui.widgets.gauges import GaugeStrip

PICTURES = {
    "result": (histories.contributed, []),
    "profile": (histories.timed, ["2"]),
    "trials": (histories.contributed, ["3"]),
    "export": (histories.whole, ["4", "down"]),
    "waiting": (histories.start, []),
    "measuring": (histories.measuring, []),
    "decided": (histories.decided, ["down"]),
    "unfolded": (histories.whole, ["end", "enter"]),
    "memory": (histories.by_memory, []),
    "cpu": (cpu_history, []),
    "judged_nothing": (histories.judged_nothing, []),
    "failure": (histories.failure, []),
    "help": (histories.whole, ["question_mark"]),
}
# Those that are also taken small.
SMALL_TOO = ("profile", "measuring", "export", "unfolded")


def is_unchanged(snap_compare, name, size) -> bool:
    """Whether a picture, taken in the working directory, is the stored one."""
    history, keys = PICTURES[name]
    app, _ = make_app(history())

    async def play(pilot) -> None:
        await settle(pilot)
        app.query_one(GaugeStrip).reading = READING if name in ("result", "trials") else None
        for entry in app.query(Input):
            entry.cursor_blink = False  # a picture of a slow moment would be without it
        await press(pilot, *keys)

    return snap_compare(app, terminal_size=size, run_before=play)
