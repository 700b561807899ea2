"""``perf-advisor open``: a recorded session in the app."""

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.cli.checks import shows_the_app
from advisor.cli.parser import Parser, add_recipe_folders
from advisor.errors import UsageError
from advisor.process.meanwhile import collector_waits


@dataclass(frozen=True, slots=True)
class Open:
    """Show a recorded session in the app; an empty id lets the person pick one.

    ``recipe_folders``: recipes of these folders are loaded; of those that the session names, none are.
    """

    session_id: str
    recipe_folders: tuple[str, ...] = ()

    def run(self) -> int:
        """Run the app, and return its exit code. Raises UsageError where there is no terminal, or no such session."""
        if not shows_the_app():
            command = f"perf-advisor report {self.session_id}".rstrip()
            raise UsageError(
                "open shows a session in the app, and there is no terminal that it can draw on.",
                f"`{command}` prints the session.",
            )
        with collector_waits():
            from advisor.tui.launch import show_session

        return show_session(self.session_id, self.recipe_folders)


def parse(arguments: Sequence[str]) -> Open:
    """The options of this command. Raises UsageError."""
    parser = Parser("perf-advisor open", "Show a recorded session in the app; key c goes on measuring where it ended.")
    parser.add_argument("session", nargs="?", default="", metavar="SESSION", help="its id; a list if left out")
    add_recipe_folders(parser)
    options = parser.parse(arguments)
    return Open(options.session, tuple(options.recipes))
