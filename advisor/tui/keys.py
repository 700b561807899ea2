"""The keys of the whole app: steering the session, help, quitting. Each view declares its own keys."""

from typing import Any

from textual.binding import Binding


def key(name: str, keys: str, action: str, label: str, tooltip: str, **options: Any) -> Binding:
    """Return a key that people can find: its label is in the footer or the palette, its tooltip in the help."""
    return Binding(keys, action, label, tooltip=tooltip, id=name, **options)


def _steers(name: str, keys: str, label: str, tooltip: str) -> Binding:
    return key(f"session.{name}", keys, f"steer('{name}')", label, tooltip)


# For a key that works everywhere, also in a text field, and is not in the footer or the palette.
_HIDDEN = {"show": False, "priority": True, "system": True}
APP_KEYS = (
    # ``Controller.can`` says which of these keys do something now.
    _steers("skip", "x", "Skip", "Skip the running trial; the session goes on without it"),
    _steers("stop", "x", "Stop", "Stop what is measured again after the session; the session and its figures stay"),
    _steers("pause", "space", "Pause", "Pause before the next trial; the time left stands still meanwhile"),
    _steers("wait", "w", "Wait", "Pause until other programs leave this machine alone"),
    _steers("go_on", "space", "Go on", "End the pause"),
    _steers("untried", "R", "Try the rest", "After the session: try what it had no time for, for as long again"),
    _steers("minute", "plus", "1 min more", "Give the session one more minute; after its end, search on for a minute"),
    _steers("finish", "E", "End and report", "End the session now and report what it has measured"),
    key("app.suspend", "ctrl+z", "suspend_process", "Suspend", "Go back to the shell; fg comes back", show=False),
    key("app.help", "question_mark,f1", "help", "Help", "Keys, marks, and how the numbers are made"),
    key("app.quit", "q", "quit", "Quit", "Leave, after a question while something is measured", system=True),
    key("app.interrupt", "ctrl+q,ctrl+c", "quit_at_once", "Quit", "Leave at once; all figures are kept", **_HIDDEN),
)
