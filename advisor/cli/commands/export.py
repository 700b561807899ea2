"""``perf-advisor export``: the settings that a recorded session found."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial

from advisor.cli.checks import check_recipes, outputs_of
from advisor.cli.commands.revisit import revisit
from advisor.cli.parser import Parser, add_config_kind, add_export, add_recipe_folders, key_map_of, merged_map


def parse(arguments: Sequence[str]) -> Callable[[], int]:
    """The command with its options, to be called. Raises UsageError."""
    parser = Parser("perf-advisor export", "Write the settings that a recorded session found.")
    parser.add_argument("session", nargs="?", default="", metavar="SESSION", help="its id; the latest if left out")
    add_export(parser, default="tuned.yaml")
    parser.option("--config", metavar="FILE", help="your YAML, JSON or TOML config: write a patched copy of it instead")
    parser.option("--map", metavar="KEY=PATH,…", action="append", default=[], read=key_map_of, help=argparse.SUPPRESS)
    add_config_kind(parser)
    add_recipe_folders(parser)
    options = parser.parse(arguments)
    key_map = merged_map(options.map)
    check_recipes(options.recipes, key_map)
    outputs = outputs_of(options, key_map)
    return partial(revisit, options.session, outputs, tuple(options.recipes), show=False, force=options.force)
