"""A parser of options whose errors are ours, and the options that several commands have."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from advisor.cli.values import folder_of, path_of
from advisor.errors import UsageError
from advisor.export.formats import formats_of
from advisor.figures.options import alternatives, choice_of, count_of
from advisor.records import ConfigKind

_GIVEN = " given"  # the values of the options so far, in the namespace while it is filled; no option has this name


class _Once(argparse.Action):
    """Stores the value of an option; another value of the same option is an error, and does not replace the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Store the value. Raises UsageError for a second one."""
        given = vars(namespace).setdefault(_GIVEN, {})
        if option_string and given.setdefault(self.dest, values) != values:
            raise UsageError(f"{option_string} is given twice, with different values.", self._what_to_do(option_string))
        setattr(namespace, self.dest, values)

    def _what_to_do(self, option: str) -> str:
        if not formats_of(option):
            return f"Give {option} once."
        command = "export" if option == "--export" else "report"
        return f"Give it once; `perf-advisor {command} {option} FILE` writes another file of a recorded session."


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
        self.register("action", None, _Once)

    def option(self, *names: str, read: Callable[[str], Any] = str, **kwargs: Any) -> None:
        """An option whose value is read by ``read``; its errors name the option."""

        def read_named(text: str) -> Any:
            try:
                return read(text)
            except UsageError as error:
                raise UsageError(f"{names[0]}: {error.message}", error.hint) from None

        self.add_argument(*names, type=read_named, **kwargs)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options of a command line. Raises UsageError."""
        options, extra = self.parse_known_args(arguments)
        vars(options).pop(_GIVEN, None)
        if extra:
            raise self._unknown(extra)
        return options

    def error(self, message: str) -> NoReturn:
        """Turn argparse's own complaints into ours."""
        match = re.fullmatch(r"argument ([^:]+): expected (.*)", message)
        if match:
            option = match[1].split("/")[-1]
            value = self._option_string_actions[option].metavar
            written = f"Write {option} {value}. " if isinstance(value, str) else ""
            raise UsageError(f"{option} expects {match[2]}.", written + self._help_hint())
        raise UsageError(f"{message}.", self._help_hint())

    def _unknown(self, extra: Sequence[str]) -> UsageError:
        option = next((word.partition("=")[0] for word in extra if word.startswith("-")), None)
        if option is None:
            return UsageError(f"{extra[0]!r} is one argument too many.", self._help_hint())
        close = difflib.get_close_matches(option, self._option_string_actions, n=1, cutoff=0.6)
        hint = f"Did you mean {close[0]}? " if close else ""
        return UsageError(f"there is no option {option}.", hint + self._help_hint())

    def _help_hint(self) -> str:
        return f"`{self.prog} --help` lists what there is."


def add_export(parser: Parser, **kwargs: Any) -> None:
    """Add the option ``--export``."""
    briefs = alternatives([each.brief for each in formats_of("--export")])
    parser.option("--export", metavar="FILE", help=f"write the settings that won: {briefs}", **kwargs)


def add_reports(parser: Parser) -> None:
    """Add the options ``--report``, ``--trace`` and ``--json``."""
    for noun, about in (("report", "the report"), ("trace", "the profile's Chrome trace")):
        suffixes = [suffix for each in formats_of(f"--{noun}") for suffix in each.suffixes]
        written = f"write {about}, {alternatives(suffixes)}"
        parser.option(f"--{noun}", metavar="FILE", read=path_of(noun, suffixes), help=written)
    parser.option("--json", metavar="FILE|-", help="write the report as JSON; - is standard output, without the app")


def add_rendezvous(parser: Parser) -> None:
    """Add torchrun's options for several machines, by its own names."""
    parser.option(
        "--nnodes", metavar="N", read=count_of, default=1, help="machines that take part, with as many GPUs each"
    )
    parser.option("--rdzv-endpoint", metavar="HOST:PORT", help="where they meet: a port of the first machine")
    parser.option("--rdzv-backend", metavar="NAME", default="c10d", help="how they meet: c10d (the default), etcd")


def add_config_kind(parser: Parser) -> None:
    """Add the option ``--config-kind``."""
    parser.option(
        "--config-kind",
        metavar="KIND",
        read=choice_of(ConfigKind),
        help=f"whose words your config is in, where its keys do not tell: {alternatives(list(ConfigKind))}",
    )


def add_recipe_folders(parser: Parser) -> None:
    """Add the option ``--recipes``."""
    parser.option(
        "--recipes", metavar="DIR", action="append", default=[], read=folder_of, help="more recipes, from here"
    )
