"""A parser of options that raises our errors, and the reading and checking of options that several commands share."""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from advisor.cli.options import OPTIONS
from advisor.errors import UsageError
from advisor.experiment.request import STANDARD_OUTPUT, Outputs
from advisor.export.files import check_replaceable, check_writable
from advisor.export.formats import format_for
from advisor.figures.formatting import plain
from advisor.figures.options import named, seconds_of
from advisor.records import TargetSpec, Value, text_of

_R = TypeVar("_R")


def given(record: type[_R], options: argparse.Namespace, **more: Any) -> _R:
    """Return a record filled from the options that were given. ``more`` adds fields or replaces their values."""
    of_record = {field.name for field in fields(record)}  # type: ignore[arg-type]
    found = {name: value for name, value in vars(options).items() if name in of_record and value is not None}
    once = {name: tuple(dict.fromkeys(value)) for name, value in found.items() if isinstance(value, list)}
    return record(**{**found, **once, **more})


def say(text: str) -> None:
    """Print a line of progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning on standard error, without control characters of a terminal."""
    print(f"warning: {plain(text)}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """A command's ArgumentParser, which raises UsageError instead of printing its usage and exiting.

    ``about`` is the text of the help: the docstring of the function that runs the command. A command with ``places``
    (its positional arguments) passes all words after the first ``--`` on to a target or a script (``of``); they are
    the ``arguments`` in the parsed options.
    """

    def __init__(self, name: str, about: str | None, places: str = "", of: str = "target", **kwargs: Any) -> None:
        prog = f"perf-advisor {name}".rstrip()
        kwargs |= {"usage": f"{prog} {places} [options] [-- ARGUMENTS of the {of}]"} if places else {}
        super().__init__(prog=prog, description=about, allow_abbrev=False, **kwargs)
        self._passes_on = bool(places)
        self._help_hint = f"`{prog} --help` lists what there is."

    def add(self, *names: str, group: argparse._ActionsContainer | None = None, **changes: Any) -> None:
        """Add options from ``OPTIONS``, with these changes. An error in a value names the option."""
        for name in names:
            arguments = {**OPTIONS[name], **changes}
            if read := arguments.get("type"):
                arguments["type"] = named(name)(read)
            (group or self).add_argument(name, **arguments)

    def add_limit(self) -> None:
        """Add the option --budget of a command that does not run a session."""
        self.add("--budget", type=seconds_of, default=120.0, help="90s, 2m (the default)")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options of a command line. Raises UsageError."""
        end = [*arguments, "--"].index("--") if self._passes_on else len(arguments)
        passed_on = argparse.Namespace(arguments=tuple(arguments[end + 1 :]))
        options, extra = self.parse_known_args(arguments[:end], passed_on)
        if not extra:
            return options
        option = next((word.partition("=")[0] for word in extra if word.startswith("-")), None)
        if option is None:
            raise UsageError(f"{extra[0]!r} is one argument too many.", self._help_hint)
        close = difflib.get_close_matches(option, self._option_string_actions, n=1, cutoff=0.8)
        hint = f"Did you mean {close[0]}? " if close else ""
        words = (value for value in vars(options).values() if isinstance(value, str))
        if script := next((value for value in words if value.endswith(".py")), ""):
            hint = f"If it is an option of {script}, write it after --: `{self.prog} {script} -- {option} ...`. {hint}"
        raise UsageError(f"there is no option {option}.", hint + self._help_hint)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's errors as UsageError."""
        raise UsageError(f"{message}.", self._help_hint)


def target_of(target: str, options: argparse.Namespace) -> TargetSpec:
    """The target of this name, with these options. Raises UsageError for a config that cannot be read.

    An empty name stands for the target of the session to resume, which has its own config.
    """
    config = None
    if options.config_path and target:
        from advisor.files.config_file import read_config  # late: YAML is slow to import

        config = read_config(options.config_path)
    return given(TargetSpec, options, target=target, directory=str(Path.cwd()), config=config)


def launch_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The given options for torchrun; empty on one machine. Raises UsageError if the endpoint is missing."""
    if options.rdzv_endpoint:
        meeting = ("--rdzv-endpoint", options.rdzv_endpoint, "--rdzv-backend", options.rdzv_backend)
        return ("--nnodes", str(options.machines), *meeting)
    if options.machines > 1:
        hint = "Name a port of the first with --rdzv-endpoint HOST:PORT."
        raise UsageError("several machines need a place to meet.", hint)
    return ()


def _check_recipes(options: argparse.Namespace) -> None:
    """Raise UsageError for an id, a key or a value that no recipe has, and for a recipe both chosen and skipped."""
    lists = vars(options).get  # a command need not have all of these options
    accept: list[tuple[str, Value | None]] = lists("accept") or []
    named_by = {"--only": lists("only"), "--skip": lists("skip"), "--accept": [name for name, _ in accept]}
    keys = [key for key, _ in lists("key_map") or ()]
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
    """The files that these options ask for, after checking all of them. Raises UsageError."""
    _check_recipes(options)
    key_map = dict(vars(options).get("key_map") or ())
    outputs = given(Outputs, options, key_map=key_map)
    for option, value in (("--map", key_map), ("--config-kind", outputs.config_kind)):
        if value and not outputs.config_path:
            raise UsageError(f"{option} needs a config, and none is named.", "Name it with --config FILE.")
    check_outputs(outputs)
    return outputs


def check_outputs(outputs: Outputs) -> None:
    """Raise UsageError for a file that cannot be written. The check runs before anything is measured."""
    taken = {os.path.realpath(path): "--config"} if (path := outputs.config_path) and "\0" not in path else {}
    for option, text in outputs.files.items():
        if option == "--json" and text == STANDARD_OUTPUT:
            continue
        with named(option):
            check_writable(Path(text))
        format_for(option, text, outputs)
        other = taken.setdefault(os.path.realpath(text), option)
        if option != other and (other, option) != ("--config", "--export"):  # the export may patch the config in place
            raise UsageError(f"{other} and {option} name the same file, {text}.", "Give each a different file.")


def check_export(outputs: Outputs, target: TargetSpec) -> None:
    """Raise UsageError if the export would replace a file that is neither ours nor the config to patch."""
    path, config = outputs.export_path, outputs.config_path
    if path and not (config and os.path.realpath(path) == os.path.realpath(config)):
        with named("--export"):
            check_replaceable(path, target, "Name another file, or add --force to replace it.")


def shows_the_app() -> bool:
    """Whether standard input and output are a terminal that can show the app (a dumb one, as in Emacs, cannot)."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
