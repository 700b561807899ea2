"""The one registry of views, actions and keys. Bindings, footer, help and palette are all made from it.

Each binding belongs to whoever carries the action out: a view, the screen around the views, or the app.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from textual.binding import Binding, BindingType


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """A view: its id, its number key, its name and what it shows.

    ``sentence`` stands over it and says how to read it; where there is none, the live gauges do.
    """

    id: str
    key: str
    title: str
    description: str
    sentence: str = ""


VIEWS = (
    ViewInfo(
        "overview",
        "1",
        "Overview",
        "The machine, the workload, the baseline, what limits the step, and what your source shows",
    ),
    ViewInfo(
        "profile",
        "2",
        "Profile",
        "Where a step's time goes, the operators, the efficiency, and what habits cost",
        "One step of the baseline: where its time goes, and what the machine could do",
    ),
    ViewInfo("trials", "3", "Trials", "Every candidate with its verdict, live, and the log of the selected trial"),
    ViewInfo(
        "advice",
        "4",
        "Advice",
        "The ranked recommendations: effect, cost, reason and code; accept or reject",
        "The best first. Accept or reject a setting, and the stack follows",
    ),
    ViewInfo(
        "export",
        "5",
        "Export",
        "Preview and save settings, config, Python code or a report",
        "The accepted settings as a file: choose a format, look at it, save it",
    ),
)


_BRACKETS = {"right_square_bracket": "]", "left_square_bracket": "["}
_SIGNS = {"plus": "+", "slash": "/", "question_mark": "?", "ctrl+q": "^q", **_BRACKETS}


@dataclass(frozen=True, slots=True)
class Action:
    """Something the person can do. Its owner's method ``action_NAME`` does it, by the last part of the id.

    ``views`` own it and have the method each; where there is none, the screen or the app does. ``does`` is the Textual
    action where it is another than the name; those of the session are all steered by their names.
    """

    id: str
    key: str
    label: str
    description: str
    views: tuple[str, ...] = ()
    does: str = ""
    footer: bool = True
    palette: bool = True

    @property
    def action(self) -> str:
        """The Textual action string."""
        owner, _, name = self.id.rpartition(".")
        return self.does or (f"steer('{name}')" if owner == "session" else name)

    @property
    def key_display(self) -> str | None:
        """The key as a person types it; None where Textual shows it so."""
        first = self.key.split(",", 1)[0]
        return _SIGNS.get(first, first if first.isupper() else None)

    def binding(self) -> Binding:
        """The key binding of its owner."""
        return Binding(
            self.key,
            self.action,
            self.label,
            show=self.footer,
            key_display=self.key_display,
            tooltip=self.description,
            id=self.id,
        )


ACTIONS = (
    Action(
        "session.continue",
        "c",
        "Continue",
        "Go on measuring where this recorded session ended; what it measured is kept",
    ),
    Action("session.skip", "x", "Skip", "Skip the running trial; the session goes on without it"),
    Action(
        "session.stop", "x", "Stop", "Stop what is measured again after the session; the session and its figures stay"
    ),
    Action("session.pause", "space", "Pause", "Pause before the next trial; the time left stands still meanwhile"),
    Action("session.go_on", "space", "Go on", "End the pause"),
    Action("session.untried", "R", "Try the rest", "After the session: try what it had no time for, for as long again"),
    Action(
        "session.gpus", "G", "GPUs", "Choose on how many GPUs to train, after the search on one", does="choose_gpus"
    ),
    Action(
        "advice.accept",
        "a",
        "Accept",
        "Accept the recipe: it may enter the stack, also when it changes what is computed",
        ("trials", "advice"),
    ),
    Action(
        "advice.reject",
        "r",
        "Reject",
        "Reject the recipe: it leaves the stack at once, the rest is measured without it",
        ("trials", "advice"),
    ),
    Action(
        "advice.check",
        "v",
        "Check",
        "Put the recipe into the stack, or take it out: what its check box says, the other way round",
        ("advice",),
        footer=False,
    ),
    Action("advice.undo", "u", "Undo", "Take the last decision back, one after another", ("trials", "advice")),
    Action("trial.retry", "t", "Retry", "Run the selected trial again", ("trials", "advice")),
    Action(
        "view.copy",
        "y",
        "Copy",
        "Copy the code of the recommendation, the settings of the trial, or the file shown, to the clipboard",
        ("trials", "advice", "export"),
    ),
    Action("trials.log", "l", "Log", "Show or hide the log of the selected trial", ("trials",)),
    Action(
        "trials.filter",
        "slash",
        "Filter",
        "Show only the trials with these words in their name, verdict or reason; Escape clears it",
        ("trials",),
    ),
    Action(
        "trials.hide", "h", "Hidden", "Show or hide the recipes that do not apply, each with its reason", ("trials",)
    ),
    Action(
        "trials.follow",
        "f",
        "Follow",
        "Have the cursor and the log follow the running trial again",
        ("trials",),
        footer=False,
    ),
    Action("profile.panel", "m", "More", "Go to the next panel: operators, efficiency, waits and habits", ("profile",)),
    Action(
        "advice.plot",
        "p",
        "Plot",
        "The next picture: speed against memory, batch sizes; in the profile the roofline and the step times",
        ("profile", "advice"),
    ),
    Action(
        "profile.sort",
        "o",
        "Sort",
        "Order the rows by the next column; a click on a heading does it too",
        ("profile", "trials"),
    ),
    Action("profile.shapes", "g", "Shapes", "Group the operators by the shapes of their inputs", ("profile",)),
    Action(
        "profile.trace", "t", "Trace", "Save the Chrome trace of the profiled steps, for ui.perfetto.dev", ("profile",)
    ),
    Action("export.save", "s", "Save", "Write the selected format to the path shown", ("export",)),
    Action("export.path", "f", "File", "Edit the path to write to", ("export",)),
    Action(
        "session.minute",
        "plus",
        "1 min more",
        "Give the session one more minute; after its end, search on for a minute",
    ),
    Action("session.finish", "E", "End and report", "End the session now and report what it has measured"),
    *(
        Action(f"view.{view.id}", view.key, view.title, view.description, does=f"show_view('{view.id}')", footer=False)
        for view in VIEWS
    ),
    Action(
        "app.open", "O", "Open", "Show another recorded session in place of this one", does="open_session", footer=False
    ),
    Action(
        "app.compare",
        "C",
        "Compare",
        "Tell what changed from an earlier session to this one",
        does="compare",
        footer=False,
    ),
    Action(
        "screen.next_view",
        "right_square_bracket",
        "Next view",
        "Go to the next view",
        does="step_view(1)",
        footer=False,
        palette=False,
    ),
    Action(
        "screen.previous_view",
        "left_square_bracket",
        "Previous view",
        "Go to the previous view",
        does="step_view(-1)",
        footer=False,
        palette=False,
    ),
    Action("app.help", "question_mark,f1", "Help", "Keys, words, and how the numbers are made", does="help"),
    Action(
        "app.quit",
        "q",
        "Quit",
        "Leave, after a question while something is measured; everything measured is kept",
        does="quit",
        palette=False,
    ),
    Action(
        "app.interrupt",
        "ctrl+q,ctrl+c",
        "Quit",
        "Stop and leave at once, also from a text field; everything measured is kept",
        does="quit_at_once",
        footer=False,
        palette=False,
    ),
)


# Prefixes of the ids that the screen around the views owns, where no view does.
_SCREEN = ("view.", "screen.")


def view_bindings(view_id: str) -> list[BindingType]:
    """The bindings of a view."""
    return _bindings(actions_of(view_id))


def screen_bindings() -> list[BindingType]:
    """The bindings of the screen around the views."""
    return _bindings(action for action in _shared() if action.id.startswith(_SCREEN))


def app_bindings() -> list[BindingType]:
    """The bindings of the app."""
    return _bindings(action for action in _shared() if not action.id.startswith(_SCREEN))


def _bindings(actions: Iterable[Action]) -> list[BindingType]:
    return [action.binding() for action in actions]


def view_info(view_id: str) -> ViewInfo:
    """The view of that id."""
    return next(view for view in VIEWS if view.id == view_id)


def actions_of(view_id: str) -> list[Action]:
    """The actions that only some views have, those of one view."""
    return [action for action in ACTIONS if view_id in action.views]


def _shared() -> list[Action]:
    """The actions that work in every view."""
    return [action for action in ACTIONS if not action.views]
