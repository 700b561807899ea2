"""The keys of the whole app: they steer the session, show others, help and leave. Each view declares its own."""

from textual.binding import Binding


def _steers(name: str, key: str, label: str, tooltip: str) -> Binding:
    return Binding(key, f"steer('{name}')", label, tooltip=tooltip, id=f"session.{name}")


# ``Steering.can`` says which of them do something now.
_STEERING = (
    _steers("continue", "c", "Continue", "Go on measuring where this recorded session ended; what it measured is kept"),
    _steers("skip", "x", "Skip", "Skip the running trial; the session goes on without it"),
    _steers("stop", "x", "Stop", "Stop what is measured again after the session; the session and its figures stay"),
    _steers("pause", "space", "Pause", "Pause before the next trial; the time left stands still meanwhile"),
    _steers("go_on", "space", "Go on", "End the pause"),
    _steers("untried", "R", "Try the rest", "After the session: try what it had no time for, for as long again"),
    Binding(
        "G",
        "choose_gpus",
        "GPUs",
        tooltip="Choose on how many GPUs to train, after the search on one",
        id="session.gpus",
    ),
    _steers("minute", "plus", "1 min more", "Give the session one more minute; after its end, search on for a minute"),
    _steers("finish", "E", "End and report", "End the session now and report what it has measured"),
)

APP_KEYS = (
    *_STEERING,
    Binding(
        "O",
        "open_session",
        "Open",
        show=False,
        tooltip="Show another recorded session in place of this one",
        id="app.open",
    ),
    Binding(
        "C",
        "compare",
        "Compare",
        show=False,
        tooltip="Tell what changed from an earlier session to this one",
        id="app.compare",
    ),
    Binding("question_mark,f1", "help", "Help", tooltip="Keys, words, and how the numbers are made", id="app.help"),
    Binding(
        "q",
        "quit",
        "Quit",
        tooltip="Leave, after a question while something is measured; everything measured is kept",
        id="app.quit",
        system=True,
    ),
    Binding(
        "ctrl+q,ctrl+c",
        "quit_at_once",
        "Quit",
        show=False,
        tooltip="Stop and leave at once, also from a text field; everything measured is kept",
        id="app.interrupt",
        priority=True,
        system=True,
    ),
)
