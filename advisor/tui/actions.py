"""The one registry of views, actions and keys. Bindings, footer, help and palette are all made from it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding


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
    """Something the person can do. ``views`` is empty when it works everywhere.

    The last part of the id names a view's handler, or what steers the session; actions of the whole app give
    ``app_action``.
    """

    id: str
    key: str
    label: str
    description: str
    views: tuple[str, ...] = ()
    app_action: str = ""
    footer: bool = True
    palette: bool = True

    @property
    def name(self) -> str:
        """The last part of the id."""
        return self.id.rpartition(".")[2]

    @property
    def steers(self) -> str:
        """The way in which it steers the session; empty for other actions."""
        return self.name if self.id.startswith("session.") and not self.app_action else ""

    @property
    def key_display(self) -> str | None:
        """The key as a person types it; None where Textual shows it so."""
        first = self.key.split(",", 1)[0]
        return _SIGNS.get(first, first if first.isupper() else None)

    @property
    def action(self) -> str:
        """The Textual action string."""
        if self.steers:
            return f"steer('{self.steers}')"
        return self.app_action or f"in_view('{self.name}')"

    def binding(self) -> Binding:
        """The key binding of the app."""
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
    Action(
        "session.pause",
        "space",
        "Pause",
        "Pause before the next trial, and go on; the time left stands still meanwhile",
    ),
    Action(
        "session.minute",
        "plus",
        "1 min more",
        "Give the session one more minute; after its end, search on for a minute",
        footer=False,
    ),
    Action("session.untried", "R", "Try the rest", "After the session: try what it had no time for, for as long again"),
    Action(
        "session.gpus",
        "G",
        "GPUs",
        "Choose on how many GPUs to train, after the search on one",
        app_action="choose_gpus",
    ),
    Action(
        "session.finish", "E", "End and report", "End the session now and report what it has measured", footer=False
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
        "advice.toggle",
        "v",
        "Check",
        "Put the recipe into the stack, or take it out: what its check box says, the other way round",
        ("advice",),
        footer=False,
    ),
    Action(
        "advice.undo",
        "u",
        "Undo",
        "Take the last decision back, one after another",
        ("trials", "advice"),
        app_action="undo",
    ),
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
    Action("profile.panel", "m", "More", "Go to the next panel: operators, efficiency, waits and habits", ("profile",)),
    Action(
        "profile.trace", "t", "Trace", "Save the Chrome trace of the profiled steps, for ui.perfetto.dev", ("profile",)
    ),
    Action("export.save", "s", "Save", "Write the selected format to the path shown", ("export",)),
    Action("export.path", "f", "File", "Edit the path to write to", ("export",)),
    *(
        Action(
            f"view.{view.id}",
            view.key,
            view.title,
            view.description,
            app_action=f"show_view('{view.id}')",
            footer=False,
        )
        for view in VIEWS
    ),
    Action(
        "app.open",
        "O",
        "Open",
        "Show another recorded session in place of this one",
        app_action="open_session",
        footer=False,
    ),
    Action(
        "app.compare",
        "C",
        "Compare",
        "Tell what changed from an earlier session to this one",
        app_action="compare",
        footer=False,
    ),
    Action(
        "app.next_view",
        "right_square_bracket",
        "Next view",
        "Go to the next view",
        app_action="step_view(1)",
        footer=False,
        palette=False,
    ),
    Action(
        "app.previous_view",
        "left_square_bracket",
        "Previous view",
        "Go to the previous view",
        app_action="step_view(-1)",
        footer=False,
        palette=False,
    ),
    Action("app.help", "question_mark,f1", "Help", "Keys, words, and how the numbers are made", app_action="help"),
    Action(
        "app.quit",
        "q",
        "Quit",
        "Leave, after a question while something is measured; everything measured is kept",
        app_action="quit",
        palette=False,
    ),
    Action(
        "app.interrupt",
        "ctrl+q,ctrl+c",
        "Quit",
        "Stop and leave at once, also from a text field; everything measured is kept",
        app_action="quit_at_once",
        footer=False,
        palette=False,
    ),
)


def bindings() -> list[Binding]:
    """The app's bindings, in the order of the footer."""
    return [action.binding() for action in ACTIONS]


def view_info(view_id: str) -> ViewInfo:
    """The view of that id."""
    return next(view for view in VIEWS if view.id == view_id)


def actions_of(view_id: str) -> list[Action]:
    """The actions that only some views have, those of one view."""
    return [action for action in ACTIONS if view_id in action.views]


def global_actions() -> list[Action]:
    """The actions that work in every view."""
    return [action for action in ACTIONS if not action.views]
