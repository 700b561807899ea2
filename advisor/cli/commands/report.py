"""``perf-advisor report``: a recorded session shown again, and its report written."""

from collections.abc import Callable, Sequence
from functools import partial

from advisor.cli.checks import outputs_of
from advisor.cli.commands.revisit import revisit
from advisor.cli.parser import Parser, add_recipe_folders, add_reports


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """The command with its options, to be called. Raises UsageError."""
    parser = Parser("perf-advisor report", "Show a recorded session again, and write its report.")
    parser.add_argument("session", nargs="?", default="", metavar="SESSION", help="its id; the latest if left out")
    add_reports(parser)
    add_recipe_folders(parser)
    options = parser.parse(arguments)
    return partial(revisit, options.session, outputs_of(options, {}), tuple(options.recipes), show=True)
