"""A parser of options whose errors are ours, the values that it reads, and the options that several commands have."""

import argparse
import difflib
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

from advisor.errors import UsageError
from advisor.export.formats import formats_of
from advisor.figures.options import alternatives, choice_of, count_of, device_of, named, names_of, seconds_of
from advisor.files.paths import is_file, is_folder, no_file
from advisor.records import ConfigKind, Mode, TargetSpec, Value

_BYTES = {"b": "1"} | {
    letter + suffix: str(base**power)
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def quantity(
    noun: str, units: Mapping[str, str], hint: str, *, least: float = sys.float_info.min, most: float = math.inf
) -> Callable[[str], float]:
    """A parser for a number with one of these units, from ``least`` to ``most``, which raises UsageError."""

    def parse_quantity(text: str) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z%]*)", text.strip().lower(), re.ASCII)
        unit = units.get(match[2]) if match else None
        amount = float(Decimal(match[1]) * Decimal(unit)) if match and unit else 0.0
        if not least <= amount <= most or math.isinf(amount):
            raise UsageError(f"{text!r} is not a {noun}.", hint)
        return amount

    return parse_quantity


share_of = quantity("share", {"%": "0.01", "": "1"}, "Write one above 0 and up to 100%, such as 90% or 0.9.", most=1.0)
factor_of = quantity("factor", {"x": "1", "": "1"}, "Give a number above 0, such as 0.95 or 1.2.")
milliseconds_of = quantity(
    "latency", {"ms": "1", "s": "1000"}, "Write a positive one with its unit, such as 20ms or 1.5s."
)
size_of = quantity("size", _BYTES, "Write a number and its unit, such as 16GiB, 16GB or 800MiB.", least=1.0)


def bytes_of(text: str) -> int:
    """Whole bytes of ``16GiB`` (or ``16G``), ``16GB``, ``800MiB``. Raises UsageError unless it is a positive size."""
    return int(size_of(text))


def budget_of(text: str) -> float:
    """The seconds of a session. Raises UsageError for a number that may be seconds or minutes."""
    if re.fullmatch(r"[1-9](\.\d+)?", text.strip(), re.ASCII):
        raise UsageError(f"{text!r} may be seconds or minutes.", f"Write the unit, as in {text.strip()}m.")
    return seconds_of(text)


def shape_of(text: str) -> tuple[int, ...]:
    """The sizes in ``64x3x224x224``. Raises UsageError unless each is a positive whole number."""
    parts = re.split(r"[x,]", text.strip().lower())
    if not all(re.fullmatch(r"0*[1-9]\d{0,17}", part, re.ASCII) for part in parts):
        raise UsageError(f"{text!r} is not a shape.", "Write the batch size first, as in 64x3x224x224.")
    return tuple(int(part) for part in parts)


def accepted_of(text: str) -> tuple[tuple[str, Value | None], ...]:
    """The recipes of a list such as ``batch_size=64,half_weights``, each with its value or None. Raises UsageError."""
    pairs: list[tuple[str, Value | None]] = []
    for name in names_of(text):
        recipe, equals, value = (part.strip() for part in name.partition("="))
        if not recipe or (equals and not value):
            raise UsageError(f"{name!r} accepts nothing.", "Write ids, with a value or without: batch_size=64,compile.")
        pairs.append((recipe, _value_of(value) if equals else None))
    return tuple(pairs)


def _value_of(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) else text


def key_map_of(text: str) -> list[tuple[str, str]]:
    """Each setting with its path in a config, of ``precision.autocast=trainer.precision,…``. Raises UsageError."""
    pairs = [tuple(part.strip() for part in item.partition("=")[::2]) for item in text.split(",")]
    if not all(key and path for key, path in pairs):
        hint = "Write --map KEY=PATH, as in precision.autocast=trainer.precision."
        raise UsageError(f"{text!r} maps no setting.", hint)
    return [(key, path) for key, path in pairs]


def merged_map(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The place of each setting. Raises UsageError for a setting that has two."""
    places: dict[str, str] = {}
    for key, path in pairs:
        if places.setdefault(key, path) != path:
            raise UsageError(f"{key} is mapped to {places[key]} and to {path}.", "Name one place for each setting.")
    return places


def path_of(noun: str, suffixes: Sequence[str]) -> Callable[[str], str]:
    """A parser for the path of a file, which raises UsageError for one with none of these endings."""

    def parse_path(text: str) -> str:
        if not text.lower().endswith(tuple(suffixes)):
            raise UsageError(
                f"{text!r} is not a {noun} that can be written.", f"Name a file that ends in {alternatives(suffixes)}."
            )
        return text

    return parse_path


def folder_of(text: str) -> str:
    """An existing folder, as an absolute path. Raises UsageError where there is none."""
    if not is_folder(text):
        raise UsageError(f"the folder {text} does not exist.", "Name a folder of recipe files (.py).")
    return str(Path(text).resolve())


def script_of(text: str) -> str:
    """An existing file, as an absolute path. Raises UsageError where there is none."""
    if not is_file(text):
        raise UsageError(no_file(text), "Name the script that trains, .py or .ipynb.")
    return str(Path(text).resolve())


def gpus_of(text: str) -> int:
    """The number of GPUs to measure on, 0 for all. Raises UsageError for anything else."""
    if text.strip().lower() == "all":
        return 0
    try:
        return count_of(text)
    except UsageError as error:
        raise UsageError(error.message, "Write one such as 2, or all; --device cpu uses none.") from None


def launch_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Options for torchrun as they were given; none on one machine. Raises UsageError where a part is missing."""
    if options.nnodes > 1 and not options.rdzv_endpoint:
        raise UsageError(
            "several machines need a place to meet.", "Name a port of the first with --rdzv-endpoint HOST:PORT."
        )
    if not options.rdzv_endpoint:
        return ()
    meeting = ("--rdzv-endpoint", options.rdzv_endpoint, "--rdzv-backend", options.rdzv_backend)
    return ("--nnodes", str(options.nnodes), *meeting)


def meeting_of(text: str) -> str:
    """A ``HOST:PORT``, or a host by itself, where torchrun takes its usual port. Raises UsageError."""
    match = re.fullmatch(r"(\[[^\s\[\]]+\]|[^\s:]+)(?::0*(\d{1,5}))?", text, re.ASCII)
    if not match or not 0 < int(match[2] or 1) < 2**16:
        raise UsageError(f"{text!r} is no place to meet.", "Write HOST:PORT, with a port from 1 to 65535.")
    return text


_ENDS_OWN = "--"  # what follows is the target's own sys.argv


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The command line's own arguments, and those of the target: all that follows the first ``--``."""
    if _ENDS_OWN not in arguments:
        return list(arguments), ()
    end = list(arguments).index(_ENDS_OWN)
    return list(arguments[:end]), tuple(arguments[end + 1 :])


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
        self._group: argparse._ActionsContainer = self
        # argparse's own takes -5 for a value, and -5s for an option; no option of ours begins with a digit.
        self._negative_number_matcher = re.compile(r"-\d")

    def option(self, *names: str, read: Callable[[str], Any] = str, **kwargs: Any) -> None:
        """An option whose value is read by ``read``; its errors name the option."""

        def read_named(text: str) -> Any:
            with named(names[0]):
                return read(text)

        self._group.add_argument(*names, type=read_named, **kwargs)

    def flag(self, name: str, about: str) -> None:
        """An option without a value."""
        self._group.add_argument(name, action="store_true", help=about)

    def topic(self, title: str, words: str) -> None:
        """The options that are added from now on belong to a topic, under its title in the help."""
        self._group = self.add_argument_group(title, textwrap.fill(words, 78))

    @property
    def topics(self) -> dict[str, str]:
        """The help of each topic by its name: its title, its words, its options."""
        found = {}
        for group in self._action_groups:
            if group.description:
                shown = self._get_formatter()
                shown.start_section(group.title)
                shown.add_text(group.description)
                shown.add_arguments(group._group_actions)
                shown.end_section()
                found[(group.title or "").partition(":")[0]] = shown.format_help()
        return found

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options of a command line. Raises UsageError."""
        options, extra = self.parse_known_args(arguments)
        vars(options).pop(_GIVEN, None)
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
        """The error for words that no option takes; ``script`` is the user's, which may have meant them."""
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


def add_export(parser: Parser, **kwargs: Any) -> None:
    """Add the option ``--export``."""
    briefs = alternatives([each.brief for each in formats_of("--export")])
    parser.option("--export", metavar="FILE", help=f"write the settings that won: {briefs}", **kwargs)
    parser.flag("--force", "replace a file that holds another target's settings")
    parser.flag("--diff", "print the change of your own file, or of your config")


def add_inputs(parser: Parser) -> None:
    """Options for the mode of the target, its batches and its device."""
    parser.option("--mode", metavar="MODE", read=choice_of(Mode), help="train or infer")
    parser.option("--batch-size", metavar="N", read=count_of, help="another batch size than the target's")
    parser.option("--input", metavar="SHAPE", read=shape_of, help="the input's shape, such as 64x3x224x224")
    parser.option("--device", metavar="DEVICE", read=device_of, default="auto", help="auto, cpu, cuda or cuda:N")


def target_of(target: str, arguments: tuple[str, ...], options: argparse.Namespace) -> TargetSpec:
    """The target of this name under these options. Raises UsageError for a config that cannot be read."""
    config = None
    if options.config:
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
    parser.option(
        "--rdzv-endpoint", metavar="HOST:PORT", read=meeting_of, help="where they meet: a port of the first machine"
    )
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
