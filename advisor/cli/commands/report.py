"""``perf-advisor report``: a recorded session shown again, and its report written."""

from collections.abc import Sequence

from advisor.cli.checks import outputs_of
from advisor.cli.commands.revisit import Revisit
from advisor.cli.parser import Parser, add_recipe_folders, add_reports


def parse(arguments: Sequence[str]) -> Revisit:
    """The options of this command. Raises UsageError."""
    parser = Parser("perf-advisor report", "Show a recorded session again, and write its report.")
    parser.add_argument("session", nargs="?", default="", metavar="SESSION", help="its id; the latest if left out")
    add_reports(parser)
    add_recipe_folders(parser)
    options = parser.parse(arguments)
    outputs = outputs_of(options, {})
    return Revisit(options.session, outputs, show=True, recipe_folders=tuple(options.recipes))
