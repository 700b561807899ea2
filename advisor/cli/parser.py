"""A parser of options whose errors are ours, and what several commands read of the command line."""

import argparse
import difflib
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from advisor.cli.options import INPUTS, TOPICS, all_options
from advisor.errors import UsageError
from advisor.figures.options import named
from advisor.files.paths import check_target
from advisor.records import TargetSpec

_ENDS_OWN = "--"  # what follows is the target's own sys.argv


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The command line's own arguments, and those of the target: all that follows the first ``--``."""
    if _ENDS_OWN not in arguments:
        return list(arguments), ()
    end = list(arguments).index(_ENDS_OWN)
    return list(arguments[:end]), tuple(arguments[end + 1 :])


def _read_named(name: str, read: Callable[[str], Any], text: str) -> Any:
    with named(name):
        return read(text)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError in place of printing its usage and exiting."""

    def __init__(self, prog: str, description: str, **kwargs: Any) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )

    def add(self, *names: str, group: argparse._ActionsContainer | None = None, **changes: Any) -> None:
        """Add options of the table, with these changes. Errors in a value name the option."""
        options = all_options()
        for name in names:
            arguments = {**options[name], **changes}
            if read := arguments.get("type"):
                arguments["type"] = partial(_read_named, name, read)
            (group or self).add_argument(name, **arguments)

    def add_topic(self, name: str) -> None:
        """Add the options of a topic, under its title in the help."""
        topic = TOPICS[name]
        group = self.add_argument_group(f"{name}: {topic.title}", textwrap.fill(topic.words, 78))
        self.add(*topic.options, group=group)

    def add_session(self, if_left_out: str = "the latest") -> None:
        """Add the argument that names a recorded session."""
        about = f"its id; {if_left_out} if left out"
        self.add_argument("session", nargs="?", default="", metavar="SESSION", help=about)

    def add_exported(self, to_force: str) -> None:
        """Add the arguments of a command that measures exported settings again; ``to_force`` says what is forced."""
        self.add_argument("settings", metavar="SETTINGS", help="the file that --export wrote, as in tuned.yaml")
        self.add_argument("target", metavar="TARGET", help="what it is for, as in mymodel:build")
        self.add(*INPUTS, "--config")
        self.add("--force", help=to_force)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options of a command line. Raises UsageError."""
        options, extra = self.parse_known_args(arguments)
        if extra:
            given = (value for value in vars(options).values() if isinstance(value, str))
            raise self._unknown(extra, next((value for value in given if value.endswith(".py")), None))
        return options

    def error(self, message: str) -> NoReturn:
        """Turn argparse's own complaints into ours."""
        if match := re.fullmatch(r"argument ([^:]+): expected (.*)", message):
            option = match[1].split("/")[-1]
            value = self._option_string_actions[option].metavar
            written = f"Write {option} {value}. " if isinstance(value, str) else ""
            raise UsageError(f"{option} expects {match[2]}.", written + self._help_hint())
        raise UsageError(f"{message}.", self._help_hint())

    def _unknown(self, extra: Sequence[str], script: str | None) -> UsageError:
        """The error for words that no option takes; they may be options of the user's ``script``."""
        option = next((word.partition("=")[0] for word in extra if word.startswith("-")), None)
        if option is None:
            return UsageError(f"{extra[0]!r} is one argument too many.", self._help_hint())
        close = difflib.get_close_matches(option, self._option_string_actions, n=1, cutoff=0.6)
        hint = f"Did you mean {close[0]}? " if close else ""
        if script is not None:
            hint = f"If it is an option of {script}, write it after --: `{self.prog} {script} -- {option} ...`. {hint}"
        return UsageError(f"there is no option {option}.", hint + self._help_hint())

    def _help_hint(self) -> str:
        return f"`{self.prog} --help` lists what there is."


def target_of(target: str, arguments: tuple[str, ...], options: argparse.Namespace) -> TargetSpec:
    """The target of this name under these options. Raises UsageError for a config that cannot be read.

    Without a name it is that of a session to resume, and has that session's config.
    """
    config = None
    if options.config and target:
        from advisor.files.config_file import read_config  # YAML takes its time

        config = read_config(options.config)
    return TargetSpec(
        target,
        str(Path.cwd()),
        mode=options.mode,
        device=options.device,
        batch_size=options.batch_size,
        input_shape=options.input,
        config=config,
        arguments=arguments,
    )


def target_of_exported(options: argparse.Namespace, arguments: tuple[str, ...]) -> TargetSpec:
    """The target to measure exported settings on. Raises UsageError for a file without any, or of another target."""
    from advisor.export.files import check_target_of
    from advisor.recipe.settings import Settings

    if not Settings.from_file(options.settings):
        raise UsageError(f"{options.settings} has no settings.", "Name a file that --export wrote with some in it.")
    target = target_of(options.target, arguments, options)
    if not options.force:
        check_target_of(options.settings, target, "Name that target, or add --force to use them on this one.")
    check_target(target.target, target.directory)
    return target


def launch_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Options for torchrun as they were given; none on one machine. Raises UsageError where a part is missing."""
    if options.rdzv_endpoint:
        meeting = ("--rdzv-endpoint", options.rdzv_endpoint, "--rdzv-backend", options.rdzv_backend)
        return ("--nnodes", str(options.nnodes), *meeting)
    if options.nnodes > 1:
        hint = "Name a port of the first with --rdzv-endpoint HOST:PORT."
        raise UsageError("several machines need a place to meet.", hint)
    return ()
