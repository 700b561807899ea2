"""A parser of options whose errors are ours, and what several commands read of the command line."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from advisor.cli.options import INPUTS, OPTIONS
from advisor.errors import UsageError
from advisor.figures.formatting import plain
from advisor.figures.options import named, seconds_of
from advisor.files.paths import check_target
from advisor.records import TargetSpec

_R = TypeVar("_R")


def given(record: type[_R], options: argparse.Namespace, **more: Any) -> _R:
    """A record whose fields are the options that were given. ``more`` are further fields, or other values of fields."""
    of_record = {field.name for field in fields(record)}  # type: ignore[arg-type]
    found = {name: value for name, value in vars(options).items() if name in of_record and value is not None}
    once = {name: tuple(dict.fromkeys(value)) for name, value in found.items() if isinstance(value, list)}
    return record(**{**found, **once, **more})


def say(text: str) -> None:
    """Print a line of progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning on standard error, as text that steers no terminal."""
    print(f"warning: {plain(text)}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser of a command that raises UsageError in place of printing its usage and exiting.

    ``about`` is the text of the help: the docstring of the function that runs the command. ``places`` are the
    arguments of a command that passes on all that follows the first ``--``, to a target or a script (``of``): as
    ``arguments`` of its options.
    """

    def __init__(self, name: str, about: str | None, places: str = "", of: str = "target", **kwargs: Any) -> None:
        prog = f"perf-advisor {name}".rstrip()
        kwargs |= {"usage": f"{prog} {places} [options] [-- ARGUMENTS of the {of}]"} if places else {}
        super().__init__(prog=prog, description=about, allow_abbrev=False, **kwargs)
        self._passes_on = bool(places)
        self._help_hint = f"`{prog} --help` lists what there is."

    def add(self, *names: str, group: argparse._ActionsContainer | None = None, **changes: Any) -> None:
        """Add options of the table, with these changes. Errors in a value name the option."""
        for name in names:
            arguments = {**OPTIONS[name], **changes}
            if read := arguments.get("type"):
                arguments["type"] = named(name)(read)
            (group or self).add_argument(name, **arguments)

    def add_exported(self, to_force: str) -> None:
        """Add the arguments of a command that measures exported settings again; ``to_force`` says what is forced."""
        self.add("settings", "target", *INPUTS, "--config")
        self.add("--force", help=to_force)

    def add_limit(self) -> None:
        """Add the budget of a command that is no session."""
        self.add("--budget", type=seconds_of, default=120.0, help="90s, 2m (the default)")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options of a command line. Raises UsageError."""
        end = [*arguments, "--"].index("--") if self._passes_on else len(arguments)
        passed_on = argparse.Namespace(arguments=tuple(arguments[end + 1 :]))
        options, extra = self.parse_known_args(arguments[:end], passed_on)
        if not extra:
            return options
        option = next((word.partition("=")[0] for word in extra if word.startswith("-")), None)
        if option is None:
            raise UsageError(f"{extra[0]!r} is one argument too many.", self._help_hint)
        close = difflib.get_close_matches(option, self._option_string_actions, n=1, cutoff=0.6)
        hint = f"Did you mean {close[0]}? " if close else ""
        words = (value for value in vars(options).values() if isinstance(value, str))
        if script := next((value for value in words if value.endswith(".py")), ""):
            hint = f"If it is an option of {script}, write it after --: `{self.prog} {script} -- {option} ...`. {hint}"
        raise UsageError(f"there is no option {option}.", hint + self._help_hint)

    def error(self, message: str) -> NoReturn:
        """Turn argparse's own complaints into ours."""
        raise UsageError(f"{message}.", self._help_hint)


def target_of(target: str, options: argparse.Namespace) -> TargetSpec:
    """The target of this name under these options. Raises UsageError for a config that cannot be read.

    Without a name it is that of a session to resume, and has that session's config.
    """
    config = None
    if options.config_path and target:
        from advisor.files.config_file import read_config  # YAML takes its time

        config = read_config(options.config_path)
    return given(TargetSpec, options, target=target, directory=str(Path.cwd()), config=config)


def target_of_exported(options: argparse.Namespace) -> TargetSpec:
    """The target to measure exported settings on. Raises UsageError for a file without any, or of another target."""
    from advisor.export.files import check_target_of
    from advisor.recipe.settings import Settings

    if not Settings.from_file(options.settings):
        raise UsageError(f"{options.settings} has no settings.", "Name a file that --export wrote with some in it.")
    target = target_of(options.target, options)
    if not options.force:
        check_target_of(options.settings, target, "Name that target, or add --force to use them on this one.")
    check_target(target.target, target.directory)
    return target


def launch_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Options for torchrun as they were given; none on one machine. Raises UsageError where a part is missing."""
    if options.rdzv_endpoint:
        meeting = ("--rdzv-endpoint", options.rdzv_endpoint, "--rdzv-backend", options.rdzv_backend)
        return ("--nnodes", str(options.machines), *meeting)
    if options.machines > 1:
        hint = "Name a port of the first with --rdzv-endpoint HOST:PORT."
        raise UsageError("several machines need a place to meet.", hint)
    return ()
