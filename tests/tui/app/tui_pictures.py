"""Pictures of the app: the history that is played, the keys that are pressed, and how a picture is taken."""

import tui_histories as histories
from textual.widgets import Input
from tui_facts import READING
from tui_fakes import make_app
from tui_pilot import press, settle

from advisor.tui.widgets.gauges import GaugeStrip

PICTURES = {
    "overview": (histories.whole, ["1"]),
    "overview_more": (histories.whole, ["1", "end"]),
    "overview_cpu": (histories.cpu_demo, ["1"]),
    "overview_waiting": (histories.start, ["1"]),
    "profile": (histories.whole, ["2"]),
    "profile_shapes": (histories.whole, ["2", "g"]),
    "profile_roof": (histories.whole, ["2", "m", "end"]),
    "profile_habits": (histories.whole, ["2", "m", "m"]),
    "profile_cpu": (histories.cpu_demo, ["2"]),
    "trials": (histories.whole, ["3", "down", "down", "down"]),
    "trials_unreliable": (histories.whole, ["3", *["down"] * 7]),
    "advice": (histories.whole, ["4", "down", "a"]),
    "advice_rejected": (histories.decided, ["4", "down"]),
    "overview_rejected": (histories.decided, ["1"]),
    "trials_deciding": (histories.deciding, ["3", "home", *["down"] * 12]),
    "trials_running": (histories.to_trials, ["3"]),
    "trials_measuring": (histories.measuring, ["3"]),
    "overview_measuring": (histories.measuring, ["1"]),
    "trials_sorted": (histories.contributed, ["3", "o", "o"]),
    "trials_hidden": (histories.whole, ["3", "h", "end"]),
    "trials_filter": (histories.whole, ["3", "slash", *"batch"]),
    "overview_contributions": (histories.contributed, ["1"]),
    "overview_judged_nothing": (histories.judged_nothing, ["1"]),
    "overview_failed": (histories.failure, ["escape"]),
    "advice_contributions": (histories.contributed, ["4"]),
    "advice_value": (histories.whole, ["4", "down", "down", "a"]),
    "advice_plot": (histories.whole, ["4", "p"]),
    "advice_batches": (histories.whole, ["4", "p", "p"]),
    "profile_roofline": (histories.timed, ["2", "p"]),
    "profile_steps": (histories.timed, ["2", "p", "p"]),
    "profile_after": (histories.timed, ["2"]),
    "advice_memory": (histories.by_memory, ["4"]),
    "overview_memory": (histories.by_memory, ["1"]),
    "export": (histories.whole, ["5", "down"]),
    "export_overwrite": (histories.whole, ["5", "s"]),
    "help": (histories.whole, ["question_mark"]),
    "failure": (histories.failure, []),
}


def is_unchanged(snap_compare, name, size) -> bool:
    """Whether a picture, taken in the working directory, is the stored one."""
    history, keys = PICTURES[name]
    app, _ = make_app(history())

    async def play(pilot) -> None:
        await settle(pilot)
        app.clear_notifications()
        await settle(pilot)
        app.query_one(GaugeStrip).reading = READING if name in ("overview", "trials") else None
        for entry in app.query(Input):
            entry.cursor_blink = False  # a picture of a slow moment would be without it
        await press(pilot, *keys)
        app.clear_notifications()
        await settle(pilot)

    return snap_compare(app, terminal_size=size, run_before=play)
