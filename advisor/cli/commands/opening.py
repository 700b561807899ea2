"""``perf-advisor open``: a recorded session in the app."""

from collections.abc import Callable, Sequence
from functools import partial

from advisor.cli.checks import shows_the_app
from advisor.cli.parser import Parser, add_recipe_folders
from advisor.errors import UsageError
from advisor.process.meanwhile import collector_waits


def show(session_id: str, recipe_folders: tuple[str, ...]) -> int:
    """Show a recorded session in the app; an empty id lets the person pick one.

    Only recipes of these folders are loaded, none that the session names. Raises UsageError where there is no terminal,
    or no such session.
    """
    if not shows_the_app():
        command = f"perf-advisor report {session_id}".rstrip()
        raise UsageError(
            "open shows a session in the app, and there is no terminal that it can draw on.",
            f"`{command}` prints the session.",
        )
    with collector_waits():
        from advisor.tui.launch import show_session

    return show_session(session_id, recipe_folders)


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """The command with its options, to be called. Raises UsageError."""
    parser = Parser("perf-advisor open", "Show a recorded session in the app; key c goes on measuring where it ended.")
    parser.add_argument("session", nargs="?", default="", metavar="SESSION", help="its id; a list if left out")
    add_recipe_folders(parser)
    options = parser.parse(arguments)
    return partial(show, options.session, tuple(options.recipes))
