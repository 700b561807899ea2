"""Checks before anything is measured: the terminal, the recipes that options name, the files to write."""

import argparse
import os
import sys
from pathlib import Path

from advisor.cli.parser import given
from advisor.errors import UsageError
from advisor.experiment.request import STANDARD_OUTPUT, Outputs
from advisor.export.files import check_replaceable, check_writable
from advisor.export.formats import format_for
from advisor.figures.options import named
from advisor.records import TargetSpec, Value, text_of


def check_recipes(options: argparse.Namespace) -> None:
    """Raise UsageError for an id, a key or a value that no recipe has, and for a recipe both chosen and skipped."""
    lists = vars(options).get  # a command has some of these
    accept: list[tuple[str, Value | None]] = lists("accept") or []
    named_by = {"--only": lists("only"), "--skip": lists("skip"), "--accept": [name for name, _ in accept]}
    keys = [key for key, _ in options.key_map or ()]
    if not (any(named_by.values()) or keys):
        return
    from advisor.recipe.catalog import load_catalog

    catalog, found = load_catalog(options.recipe_folders or ()), dict[str, list[str]]()
    for option, names in named_by.items():
        with named(option):
            found[option] = [catalog[name].id for name in names or ()]
    for name, value in accept:
        if value is not None and not catalog[name].accepts(value):
            known = ", ".join(text_of(each) for each in catalog[name].values)
            raise UsageError(f"--accept: {name} has no value {text_of(value)}.", f"Choose one such as {known}.")
    for option in ("--only", "--accept"):
        if both := [name for name in found[option] if name in found["--skip"]]:
            raise UsageError(f"{option} and --skip both name {', '.join(both)}.", "Leave it out of one of them.")
    with named("--map"):
        for key in keys:
            catalog.by_key(key)


def outputs_of(options: argparse.Namespace) -> Outputs:
    """The files to write by these options, checked. Raises UsageError."""
    key_map = dict(vars(options).get("key_map") or ())
    outputs = given(Outputs, options, key_map=key_map)
    for option, value in (("--map", key_map), ("--config-kind", outputs.config_kind)):
        if value and not outputs.config_path:
            raise UsageError(f"{option} needs a config, and none is named.", "Name it with --config FILE.")
    check_outputs(outputs)
    return outputs


def check_outputs(outputs: Outputs) -> None:
    """Raise UsageError for a file that could not be written at the end, before anything is measured."""
    taken = {os.path.realpath(outputs.config_path): "--config"} if outputs.config_path else {}
    for option, text in outputs.files.items():
        if option == "--json" and text == STANDARD_OUTPUT:
            continue
        with named(option):
            check_writable(Path(text))
        format_for(option, text, outputs)
        other = taken.setdefault(os.path.realpath(text), option)
        if option != other and (other, option) != ("--config", "--export"):  # the export may patch the config in place
            raise UsageError(f"{other} and {option} name the same file, {text}.", "Give each a file of its own.")


def check_export(outputs: Outputs, target: TargetSpec) -> None:
    """Raise UsageError where the export would replace a file that is not ours, unless that is the config to patch."""
    path, config = outputs.export_path, outputs.config_path
    if path and not (config and os.path.realpath(path) == os.path.realpath(config)):
        with named("--export"):
            check_replaceable(path, target, "Name another file, or add --force to replace it.")


def shows_the_app() -> bool:
    """Whether standard input and output are a terminal that the app can draw on; a dumb one, as in Emacs, is not."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
