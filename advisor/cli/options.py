"""The command line's grammar: options become frozen records, and every mistake a UsageError that says what to do.

Nothing here imports torch, rich or textual, and the catalogue of recipes is read only to check the ids in the options.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import advisor
from advisor.errors import UsageError
from advisor.experiment.objective import DEFAULT_KEEP_SPEED
from advisor.experiment.request import DEFAULT_BUDGET_S, Request
from advisor.files.paths import exists, is_file, is_folder
from advisor.records import ConfigKind, Mode, Numerics, Objective, TargetSpec
from advisor.records.outputs import STANDARD_OUTPUT, Outputs

REPORT_SUFFIXES = (".md", ".html")
TRACE_SUFFIXES = (".json", ".json.gz")
_ENDS_OWN = "--"  # what follows is the target's own sys.argv

_E = TypeVar("_E", bound=StrEnum)


# --- what the command line asks for ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShowHelp:
    """``perf-advisor`` with nothing after it."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Run a session. ``request`` is None when a recorded one is taken up under the options that it had.

    ``budget_s`` is the time that such a session gets now, None for as much as it had. ``resume``: the session to take
    up, an empty string for the latest, None for a new one.
    """

    request: Request | None
    outputs: Outputs
    headless: bool
    resume: str | None
    budget_s: float | None = None


@dataclass(frozen=True, slots=True)
class ShowRecipes:
    """List the recipes, or show the card of one."""

    recipe_id: str | None
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShowHardware:
    """Describe the machine."""

    as_json: bool


@dataclass(frozen=True, slots=True)
class ShowSessions:
    """List the recorded sessions."""


@dataclass(frozen=True, slots=True)
class Open:
    """Show a recorded session in the app; an empty id lets the person pick one."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Compare:
    """Tell what changed from one recorded session to another."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Revisit:
    """Write outputs of a recorded session, and show it when ``show`` is set. An empty id is the latest session."""

    session_id: str
    outputs: Outputs
    show: bool


Invocation = ShowHelp | Measure | ShowRecipes | ShowHardware | ShowSessions | Open | Compare | Revisit

SHORT_HELP = """\
perf-advisor tries every known PyTorch speed-up on your model and your hardware,
and writes the settings that won.

  perf-advisor demo                    see it work on a built-in model
  perf-advisor mymodel:build           measure what build() in mymodel.py returns
  perf-advisor path/to/file.py:build   the same, by file
  perf-advisor train.py:build -- ARGS  with arguments of its own in sys.argv

  perf-advisor recipes [ID]            the speed-ups it knows
  perf-advisor hardware                this machine
  perf-advisor sessions                earlier sessions
  perf-advisor open [SESSION]          one of them in the app; from there, measure more
  perf-advisor compare A B             what changed between two of them
  perf-advisor report [SESSION]        show or write the report of one
  perf-advisor export [SESSION]        write the settings that one found

`perf-advisor --help` lists all options."""


def parse(arguments: Sequence[str]) -> Invocation:
    """What a command line asks for. Raises UsageError for a mistake; ``--help`` and ``--version`` exit."""
    if not arguments:
        return ShowHelp()
    first, *rest = arguments
    command = _COMMANDS.get(first)
    return command(rest) if command else _parse_measure(arguments)


# --- values ---------------------------------------------------------------------------------------------------


def seconds_of(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m``, ``1h`` or ``1h30m``. Raises UsageError unless it is a positive duration."""
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"{number}|(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip().lower(), re.ASCII)
    parts = [float(part) if part else 0.0 for part in match.groups()] if match else [0.0]
    total = sum(part * unit for part, unit in zip(parts, (1, 3600, 60, 1), strict=False))
    if not (0 < total < math.inf):
        raise UsageError(f"{text!r} is not a duration.", "Write a positive one such as 90s, 5m, 1h or 1h30m.")
    return total


_BYTES = {"b": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def bytes_of(text: str) -> int:
    """Bytes of ``16GiB`` (or ``16G``), ``16GB``, ``800MiB``. Raises UsageError unless it is a positive size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower(), re.ASCII)
    unit = _BYTES.get(match[2]) if match else None
    amount = float(match[1]) * unit if match and unit else 0.0
    if not (1 <= amount < math.inf):
        raise UsageError(f"{text!r} is not a size.", "Write a number and its unit, such as 16GiB, 16GB or 800MiB.")
    return int(amount)


def share_of(text: str) -> float:
    """The share, 0 to 1, in ``90%`` or ``0.9``. Raises UsageError for anything else, nothing at all included."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", text.strip(), re.ASCII)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not (0 < share <= 1):
        raise UsageError(f"{text!r} is not a share.", "Write one above 0 and up to 100%, such as 90% or 0.9.")
    return share


def shape_of(text: str) -> tuple[int, ...]:
    """The sizes in ``64x3x224x224``. Raises UsageError unless each is a positive whole number."""
    parts = re.split(r"[x,]", text.strip().lower())
    if not all(re.fullmatch(r"0*[1-9]\d{0,17}", part, re.ASCII) for part in parts):
        raise UsageError(f"{text!r} is not a shape.", "Write the batch size first, as in 64x3x224x224.")
    return tuple(int(part) for part in parts)


def count_of(text: str) -> int:
    """A positive whole number. Raises UsageError for anything else."""
    if not re.fullmatch(r"0*[1-9]\d{0,17}", text.strip(), re.ASCII):
        raise UsageError(f"{text!r} is not a positive whole number.", "Write one such as 64.")
    return int(text)


def device_of(text: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``. Raises UsageError for anything else."""
    device = text.strip().lower()
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,4})?", device, re.ASCII):
        raise UsageError(f"{text!r} is not a device.", "Choose auto, cpu, cuda or cuda:N, such as cuda:1.")
    return device


def names_of(text: str) -> tuple[str, ...]:
    """The words of a list such as ``autocast,compile``, each once. Raises UsageError when it is empty."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("an empty list names no recipe.", "Write ids such as autocast,channels_last.")
    return names


def key_map_of(text: str) -> dict[str, str]:
    """The pairs of ``precision.autocast=trainer.precision,…``. Raises UsageError for anything else."""
    pairs: dict[str, str] = {}
    for item in text.split(","):
        key, equals, path = (part.strip() for part in item.partition("="))
        if not (key and equals and path):
            raise UsageError(
                f"{item!r} maps no setting.", "Write --map KEY=PATH, as in precision.autocast=trainer.precision."
            )
        pairs[key] = path
    return pairs


def choice_of(kind: type[_E]) -> Callable[[str], _E]:
    """A parser for the values of an enumeration, which raises UsageError for any other word."""

    def parse_choice(text: str) -> _E:
        word = text.strip().lower()
        for member in kind:
            if member.value == word:
                return member
        raise UsageError(
            f"{text!r} is not one of the choices.", f"Choose {_alternatives([member.value for member in kind])}."
        )

    return parse_choice


def report_path_of(text: str) -> str:
    """A path that ends in .md or .html. Raises UsageError for another suffix."""
    if Path(text).suffix.lower() not in REPORT_SUFFIXES:
        raise UsageError(
            f"{text!r} is not a report that can be written.",
            f"Name a file that ends in {' or '.join(REPORT_SUFFIXES)}.",
        )
    return text


def trace_path_of(text: str) -> str:
    """A path that ends in .json or .json.gz. Raises UsageError for another suffix."""
    if not text.lower().endswith(TRACE_SUFFIXES):
        raise UsageError(
            f"{text!r} is not a trace that can be written.",
            f"Name a file that ends in {' or '.join(TRACE_SUFFIXES)}.",
        )
    return text


def _folder_of(text: str) -> str:
    if not is_folder(text):
        raise UsageError(f"the folder {text} does not exist.", "Name a folder of recipe files (.py).")
    return str(Path(text).resolve())


def _script_of(text: str) -> str:
    if not is_file(text):
        raise UsageError(f"there is no file {text}.", "Name the script that trains, .py or .ipynb.")
    return str(Path(text).resolve())


def _gpus_of(text: str) -> int:
    gpus = count_of(text)
    if gpus > 1:
        raise UsageError(
            "measuring on more than one GPU is not supported yet.", "Leave --gpus out; --device cuda:N picks the GPU."
        )
    return gpus


# --- parsers --------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError in place of printing its usage and exiting."""

    def __init__(self, prog: str, description: str, **kwargs: Any) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **kwargs,
        )

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
        if extra:
            raise self._unknown(extra)
        return options

    def error(self, message: str) -> NoReturn:
        """Turn argparse's own complaints into ours."""
        match = re.fullmatch(r"argument ([^:]+): expected (.*)", message)
        if match:
            raise UsageError(f"{match[1].split('/')[-1]} expects {match[2]}.", self._help_hint())
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


def _measure_parser() -> _Parser:
    parser = _Parser(
        "perf-advisor",
        SHORT_HELP.rpartition("\n\n")[0],
        usage="perf-advisor TARGET [options] [-- ARGUMENTS of the target]",
    )
    parser.add_argument("target", nargs="?", metavar="TARGET", help="module:attr, path/file.py:attr, or demo")
    parser.add_argument("--version", action="version", version=f"perf-advisor {advisor.__version__}")
    parser.add_argument("--headless", action="store_true", help="no app; the default when this is no terminal")
    parser.option("--json", metavar="FILE|-", help="write the report as JSON; - is standard output, without the app")
    parser.option(
        "--export", metavar="FILE", help="write the settings that won: YAML, .py, or with --config your file patched"
    )
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="do not time a plain loop with the exported file (up to 60 s)",
    )
    parser.option("--config", metavar="FILE", help="your YAML, JSON or TOML config, given to build(config)")
    parser.option(
        "--map",
        metavar="KEY=PATH,…",
        action="append",
        default=[],
        read=key_map_of,
        help="where your config holds a setting, as in data.num_workers=loader.workers",
    )
    _add_config_kind(parser)
    parser.option("--report", metavar="FILE", read=report_path_of, help="write the report, .md or .html")
    parser.option(
        "--trace", metavar="FILE", read=trace_path_of, help="write the profile's Chrome trace, .json or .json.gz"
    )
    parser.option("--budget", metavar="TIME", read=seconds_of, default=None, help="90s, 5m (the default), 1h")
    parser.option(
        "--objective",
        metavar="GOAL",
        read=choice_of(Objective),
        default=Objective.THROUGHPUT,
        help="throughput (the default), memory, latency or energy",
    )
    parser.option("--memory-limit", metavar="SIZE", read=bytes_of, help="what the peak may not exceed, such as 16GiB")
    parser.option(
        "--keep-speed",
        metavar="SHARE",
        read=share_of,
        help="with --objective memory: the speed that less memory must keep, such as 90%% (the default)",
    )
    parser.option("--mode", metavar="MODE", read=choice_of(Mode), help="train or infer")
    parser.option("--device", metavar="DEVICE", read=device_of, default="auto", help="auto, cpu, cuda or cuda:N")
    parser.option("--gpus", metavar="N", read=_gpus_of, default=1, help="GPUs to measure on; one for now")
    parser.option("--batch-size", metavar="N", read=count_of, help="another batch size than the target's")
    parser.option("--input", metavar="SHAPE", read=shape_of, help="the input's shape, such as 64x3x224x224")
    parser.option("--only", metavar="ID,…", read=names_of, default=(), help="try these recipes and no others")
    parser.option("--skip", metavar="ID,…", read=names_of, default=(), help="leave these recipes out")
    parser.option(
        "--script",
        metavar="FILE",
        action="append",
        default=[],
        read=_script_of,
        help="your training script, read for habits (not run); may be given again",
    )
    _add_recipe_folders(parser)
    parser.option(
        "--allow",
        metavar="CLASS",
        read=choice_of(Numerics),
        default=Numerics.CLOSE,
        help="the worst numerics that need no consent: exact, close (the default) or changed",
    )
    parser.option("--resume", metavar="SESSION", nargs="?", const="", help="take up the latest session, or this one")
    return parser


def _add_config_kind(parser: _Parser) -> None:
    parser.option(
        "--config-kind",
        metavar="KIND",
        read=choice_of(ConfigKind),
        help=f"whose words your config is in, where its keys do not tell: {_alternatives(list(ConfigKind))}",
    )


def _add_recipe_folders(parser: _Parser) -> None:
    parser.option(
        "--recipes", metavar="DIR", action="append", default=[], read=_folder_of, help="more recipes, from here"
    )


# What says how to measure, and is kept with the session.
_OF_THE_REQUEST = (
    "objective",
    "memory_limit",
    "keep_speed",
    "mode",
    "device",
    "gpus",
    "batch_size",
    "input",
    "only",
    "skip",
    "script",
    "recipes",
    "allow",
)


def _parse_measure(arguments: Sequence[str]) -> Measure:
    parser = _measure_parser()
    own, targets = _split(arguments)
    options = parser.parse(own)
    target, resume = _target_and_resume(options.target or None, options.resume)
    if target is None:
        _check_taken_up_as_it_was(parser, options, targets)
    key_map = {key: path for pairs in options.map for key, path in pairs.items()}
    _check_recipes(options.only, options.skip, key_map, options.recipes)
    if options.keep_speed is not None and options.objective is not Objective.MEMORY:
        raise UsageError(
            f"--keep-speed says what speed less memory must keep, and the objective is {options.objective}.",
            "Leave it out, or add --objective memory.",
        )
    outputs = _outputs(options, key_map)
    return Measure(
        request=_request(target, targets, options, key_map) if target else None,
        outputs=outputs,
        headless=options.headless or outputs.json_to_stdout,
        resume=resume,
        budget_s=options.budget,
    )


def _split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The command line's own arguments, and those of the target: all that follows the first ``--``."""
    if _ENDS_OWN not in arguments:
        return list(arguments), ()
    end = list(arguments).index(_ENDS_OWN)
    return list(arguments[:end]), tuple(arguments[end + 1 :])


def _target_and_resume(target: str | None, resume: str | None) -> tuple[str | None, str | None]:
    if (
        target is None and resume and (":" in resume or resume == "demo")
    ):  # `--resume TARGET` reads as `--resume SESSION`
        target, resume = resume, ""
    if target is None and resume is None:
        raise UsageError(
            "there is no target to measure.", "Name one: `perf-advisor mymodel:build`, or `perf-advisor demo`."
        )
    if target in _COMMANDS:
        raise UsageError(
            f"{target!r} is a command, and commands come first.",
            f"Write `perf-advisor {target} …`; a file of that name is ./{target}.py:build.",
        )
    close = difflib.get_close_matches(target, _COMMANDS, n=1, cutoff=0.75) if target and ":" not in target else []
    if close:
        raise UsageError(
            f"{target!r} looks like a command, but there is none of that name.",
            f"Did you mean `perf-advisor {close[0]}`? A module of that name is {target}:build.",
        )
    return target, resume


def _check_taken_up_as_it_was(parser: _Parser, options: argparse.Namespace, arguments_of_target: Sequence[str]) -> None:
    """Raise UsageError for what would be ignored: without a target, a session goes on with its own options."""
    given = [name for name in _OF_THE_REQUEST if getattr(options, name) != parser.get_default(name)]
    if given or arguments_of_target:
        option = f"--{given[0].replace('_', '-')}" if given else f"-- {shlex.join(arguments_of_target)}"
        raise UsageError(
            f"--resume without a target takes the session up as it was asked for, and {option} would change that.",
            f"Name its target too: `perf-advisor mymodel:build --resume {option} …`.",
        )


def _request(target: str, arguments: tuple[str, ...], options: argparse.Namespace, key_map: dict[str, str]) -> Request:
    from advisor.files.config_file import read_config

    spec = TargetSpec(
        target=target,
        directory=str(Path.cwd()),
        mode=options.mode,
        device=options.device,
        batch_size=options.batch_size,
        input_shape=options.input,
        config=read_config(options.config) if options.config else None,
        arguments=arguments,
    )
    return Request(
        target=spec,
        budget_s=DEFAULT_BUDGET_S if options.budget is None else options.budget,
        objective=options.objective,
        keep_speed=DEFAULT_KEEP_SPEED if options.keep_speed is None else options.keep_speed,
        allow=options.allow,
        memory_limit_bytes=options.memory_limit,
        only=options.only,
        skip=options.skip,
        recipe_folders=tuple(options.recipes),
        gpus=options.gpus,
        config_path=str(Path(options.config).resolve()) if options.config else None,
        key_map=key_map,
        scripts=tuple(options.script),
    )


def _check_recipes(
    only: Sequence[str], skip: Sequence[str], key_map: Mapping[str, str], folders: Sequence[str]
) -> None:
    """Raise UsageError for an id or a key that the catalogue lacks, and for a recipe both wanted and left out."""
    if not (only or skip or key_map):
        return
    from advisor.recipe.catalog import load_catalog

    catalog = load_catalog(folders)
    for option, names in (("--only", only), ("--skip", skip)):
        for name in names:
            if name not in catalog.recipes:
                raise unknown_recipe(name, tuple(catalog.recipes), f"{option}: ")
    both = [name for name in only if name in skip]
    if both:
        raise UsageError(f"--only and --skip both name {', '.join(both)}.", "Leave it out of one of them.")
    keys = [recipe.key for recipe in catalog]
    for key in key_map:
        if key not in keys:
            raise UsageError(
                f"--map: no recipe owns the setting {key!r}.",
                _closest(key, keys) or "`perf-advisor recipes` lists the settings.",
            )


def unknown_recipe(name: str, known: Sequence[str], prefix: str = "") -> UsageError:
    """The error for an id that no recipe has, with the ids nearest to it."""
    return UsageError(
        f"{prefix}there is no recipe {name!r}.", _closest(name, known) or "`perf-advisor recipes` lists the recipes."
    )


def _closest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word.lower().replace("-", "_"), known, n=3, cutoff=0.5)
    return f"Did you mean {_alternatives(close)}?" if close else ""


def _alternatives(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


# --- outputs --------------------------------------------------------------------------------------------------


def _outputs(options: argparse.Namespace, key_map: Mapping[str, str]) -> Outputs:
    """Where the results of these options go, checked. Raises UsageError."""
    config = getattr(options, "config", None)
    if key_map and not config:
        raise UsageError("--map says where a config holds a setting, but there is none.", "Name it with --config FILE.")
    if getattr(options, "config_kind", None) and not config:
        raise UsageError("--config-kind says what a config is for, but there is none.", "Name it with --config FILE.")
    outputs = Outputs(
        json_path=getattr(options, "json", None),
        export_path=getattr(options, "export", None),
        report_path=getattr(options, "report", None),
        config_path=config,
        key_map=key_map,
        trace_path=getattr(options, "trace", None),
        config_kind=getattr(options, "config_kind", None),
        verify=not getattr(options, "no_verify", False),
    )
    check_outputs(outputs)
    return outputs


def check_outputs(outputs: Outputs) -> None:
    """Raise UsageError for a file that could not be written at the end, so that no measurement is made in vain."""
    named = {
        "--json": outputs.json_path,
        "--export": outputs.export_path,
        "--report": outputs.report_path,
        "--trace": outputs.trace_path,
    }
    taken: dict[Path, str] = {}
    for option, text in named.items():
        if text is None or (option == "--json" and text == STANDARD_OUTPUT):
            continue
        path = Path(text)
        _check_writable(option, path)
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise UsageError(f"{other} and {option} name the same file, {text}.", "Give each a file of its own.")


def _check_writable(option: str, path: Path) -> None:
    if is_folder(path):
        raise UsageError(f"{option}: {path} is a folder.", "Name a file in it.")
    if not is_folder(path.parent):
        raise UsageError(f"{option}: the folder {path.parent} does not exist.", "Make it first, or name another file.")
    replaced = is_file(path) or not exists(path)  # unlike a device or a pipe, such as /dev/stderr
    try:
        path.lstat()
    except FileNotFoundError:
        allowed = True
    except (OSError, ValueError):  # no file can have that name
        allowed = False
    else:
        allowed = not exists(path) or os.access(path, os.W_OK)
    if not allowed or (replaced and not os.access(path.parent, os.W_OK)):
        raise UsageError(f"{option}: {path} cannot be written.", "Name a file that you may write.")


# --- commands -------------------------------------------------------------------------------------------------


def _parse_recipes(arguments: Sequence[str]) -> ShowRecipes:
    parser = _Parser("perf-advisor recipes", "List the recipes, or show what one does, when it helps and its numerics.")
    parser.add_argument("recipe_id", nargs="?", metavar="ID", help="the recipe to show")
    _add_recipe_folders(parser)
    options = parser.parse(arguments)
    return ShowRecipes(options.recipe_id, tuple(options.recipes))


def _parse_hardware(arguments: Sequence[str]) -> ShowHardware:
    parser = _Parser("perf-advisor hardware", "Describe this machine: its CPU, memory and GPUs.")
    parser.add_argument("--json", action="store_true", help="as JSON")
    return ShowHardware(as_json=parser.parse(arguments).json)


def _parse_sessions(arguments: Sequence[str]) -> ShowSessions:
    _Parser("perf-advisor sessions", "List the recorded sessions, the latest first.").parse(arguments)
    return ShowSessions()


def _parse_open(arguments: Sequence[str]) -> Open:
    parser = _Parser(
        "perf-advisor open",
        "Show a recorded session in the app. Key c goes on measuring where it ended, y copies code.",
    )
    parser.add_argument("session", nargs="?", default="", metavar="SESSION", help="its id; a list if left out")
    return Open(parser.parse(arguments).session)


def _parse_compare(arguments: Sequence[str]) -> Compare:
    parser = _Parser(
        "perf-advisor compare",
        "Tell what changed between two recorded sessions: baseline, stack, settings, verdicts, machine, versions.",
    )
    parser.add_argument("before", metavar="A", help="the id of the earlier session, or its beginning")
    parser.add_argument("after", metavar="B", help="the id of the later one")
    options = parser.parse(arguments)
    return Compare(options.before, options.after)


def _parse_report(arguments: Sequence[str]) -> Revisit:
    parser = _Parser("perf-advisor report", "Show a recorded session again, and write its report.")
    parser.add_argument("session", nargs="?", default="", metavar="SESSION", help="its id; the latest if left out")
    parser.option("--report", metavar="FILE", read=report_path_of, help="write the report, .md or .html")
    parser.option(
        "--trace", metavar="FILE", read=trace_path_of, help="write the profile's Chrome trace, .json or .json.gz"
    )
    parser.option("--json", metavar="FILE|-", help="write the report as JSON; - is standard output")
    options = parser.parse(arguments)
    outputs = _outputs(options, {})
    return Revisit(options.session, outputs, show=True)


def _parse_export(arguments: Sequence[str]) -> Revisit:
    parser = _Parser("perf-advisor export", "Write the settings that a recorded session found.")
    parser.add_argument("session", nargs="?", default="", metavar="SESSION", help="its id; the latest if left out")
    parser.option("--export", metavar="FILE", default="tuned.yaml", help="where to (tuned.yaml if left out)")
    parser.option("--config", metavar="FILE", help="your YAML, JSON or TOML config: write a patched copy of it instead")
    parser.option("--map", metavar="KEY=PATH,…", action="append", default=[], read=key_map_of, help=argparse.SUPPRESS)
    _add_config_kind(parser)
    options = parser.parse(arguments)
    key_map = {key: path for pairs in options.map for key, path in pairs.items()}
    _check_recipes((), (), key_map, ())
    return Revisit(options.session, _outputs(options, key_map), show=False)


_COMMANDS: dict[str, Callable[[Sequence[str]], Invocation]] = {
    "recipes": _parse_recipes,
    "hardware": _parse_hardware,
    "sessions": _parse_sessions,
    "open": _parse_open,
    "compare": _parse_compare,
    "report": _parse_report,
    "export": _parse_export,
}
