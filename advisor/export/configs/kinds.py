"""Recognise by a config's keys which program reads it; and the names of settings in programs and people's configs.

If no program is recognised, a value is replaced only if its meaning is certain: its name belongs to one setting, the
config has one such value, and the value has the same type.
"""

import functools
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from advisor.export.configs.document import Entry, Path, Scalar, at, evaluates, is_interpolation, walk
from advisor.files.config_file import parsed
from advisor.records import ConfigKind, Mode, Value

ENOUGH = 2  # the number of a program's own names from which on it is recognised
_SUBCOMMANDS = ("fit", "validate", "test", "predict")
_DEEPEST_HOME = 2  # the most levels of mappings around a program's arguments (`trainer: args:`)
# The names of mappings that may hold a program's arguments.
_NESTED = ("training_args", "training_arguments", "training", "train", "trainer", "args", "train_args")
# The entries for one value of a setting: their names with the words to write. `a.b` is the key b in the mapping a. A
# name with `?` at its end is written only if the config has another value there. With `!`, the entries apply only if
# the config has this name already. In the table, `*` is the rule for all other values, and as a word it is the value
# itself. A setting with only a name has its value written under that name.
Words = Mapping[str, Value | None]
Rules = Mapping[str, str | Mapping[Value, Words]]


class Program(msgspec.Struct, frozen=True):
    """A program that reads configs: the names by which it is recognised, and its words for settings."""

    rules: Rules
    own: frozenset[str]  # argument names that are rare in other programs
    sure: frozenset[str] = frozenset()  # if one of these is there, shared names count too; default: any own name
    shared: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()  # names of similar programs: if one is there, no name counts
    values: dict[str, frozenset[str]] = {}  # names that count only with these values


class Names(msgspec.Struct, frozen=True):
    """Names in a config that mean only this setting, besides the last part of the setting's key."""

    words: frozenset[str] = frozenset()  # keys with the setting's value; replaced if it is the loop's present value
    booleans: dict[str, frozenset[str]] = {}  # setting's value -> the names that mean it if they are true
    otherwise: str = ""  # the setting's value if they are false
    switches: frozenset[str] = frozenset()  # booleans that switch the word beside them on


class Table(msgspec.Struct, frozen=True):
    """The table of all words."""

    programs: dict[ConfigKind, Program]
    names: dict[str, Names]
    totals: dict[str, frozenset[str]]  # total of samples -> the keys beside it that are its factors
    types: tuple[tuple[str, ...], ...]  # the vocabularies for number types


@functools.cache
def table() -> Table:
    """The table, ``words.yaml``, read once."""
    path = pathlib.Path(__file__).with_name("words.yaml")
    return msgspec.convert(parsed(path.read_text(encoding="utf-8"), path.name), Table)


def kind_of(tree: Mapping[str, Any]) -> ConfigKind:
    """The kind with the most own names in a config; plain if no kind has enough."""
    defaults = tree.get("defaults")
    composed = isinstance(defaults, list) and (
        "_self_" in defaults or any(isinstance(item, dict) and len(item) == 1 for item in defaults)
    )
    # Hydra's configs contain classes (`_target_`), or required values (`???`).
    made = (node == "???" or (isinstance(node, dict) and "_target_" in node) for _, node in walk(tree))
    if "hydra" in tree or composed or any(made):
        return ConfigKind.HYDRA
    found = {kind: max(names_of(kind, mapping) for _, mapping in _places(tree)) for kind in table().programs}
    found[ConfigKind.LIGHTNING] = _names_of_lightning(tree)
    best = max(found, key=lambda kind: found[kind])
    return best if found[best] >= ENOUGH else ConfigKind.PLAIN


def names_classes(tree: Mapping[str, Any]) -> bool:
    """Whether a config names classes for jsonargparse, a parser that refuses unknown names."""
    return any(isinstance(node, dict) and "class_path" in node for _, node in walk(tree))


def home_of(kind: ConfigKind, tree: Mapping[str, Any]) -> tuple[str, ...]:
    """The path of the mapping with the program's arguments; often it is the top level."""
    if kind is ConfigKind.LIGHTNING:
        if command := _subcommand(tree):
            return (command, *home_of(kind, tree[command]))
        trainer = table().programs[kind]
        arguments = trainer.own | trainer.values.keys() | trainer.shared
        return ("trainer",) if "trainer" in tree or len(arguments & tree.keys()) < ENOUGH else ()
    return max(_places(tree), key=lambda place: names_of(kind, place[1]))[0] if kind in table().programs else ()


def _places(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """The mappings that may hold a program's arguments, by path: the tree, and inner mappings with some names."""
    yield path, tree
    for name in _NESTED if len(path) < _DEEPEST_HOME else ():
        if isinstance(tree.get(name), dict):
            yield from _places(tree[name], (*path, name))


def names_of(kind: ConfigKind, mapping: Mapping[str, Any]) -> int:
    """The number of a kind's own names in a mapping; 0 if names of a similar program are there."""
    program = table().programs[kind]
    if program.others & mapping.keys():
        return 0
    own = program.own & mapping.keys()
    own |= {name for name, values in program.values.items() if str(mapping.get(name)) in values}
    sure = program.sure or program.own | program.values.keys()
    return len(own) + (len(program.shared & mapping.keys()) if sure & own else 0)


def _names_of_lightning(tree: Mapping[str, Any]) -> int:
    """The number of Lightning's own names under ``trainer:`` (as in a LightningCLI config) or at the top level."""
    if command := _subcommand(tree):
        return _names_of_lightning(tree[command])
    trainer = tree.get("trainer")
    if "seed_everything" in tree and isinstance(trainer, dict | None) and "trainer" in tree:
        return ENOUGH + len(trainer or ())
    inside = names_of(ConfigKind.LIGHTNING, trainer) if isinstance(trainer, dict) else 0
    # Other programs use Lightning's words for precisions too.
    is_sure = table().programs[ConfigKind.LIGHTNING].own & tree.keys()
    return inside or (names_of(ConfigKind.LIGHTNING, tree) if is_sure else 0)


def _subcommand(tree: Mapping[str, Any]) -> str:
    """The LightningCLI subcommand (``fit``, for example) that holds a config's arguments; empty if there is none."""
    return next((name for name in _SUBCOMMANDS if isinstance(tree.get(name), dict) and "trainer" in tree[name]), "")


_WITHIN_A_NAME = re.compile(r"-|(?<=[a-z0-9])(?=[A-Z])")  # word boundaries: `num-workers`, `numWorkers`
_MAKE_A_TOTAL = ("data.batch_size", "step.accumulate")  # their product is the total of samples per update
_OTHERS_OF_LIGHTNING = frozenset({"32", "16", "bf16-true", "16-true"})
_DTYPES: Mapping[Value, int] = {"none": 0, "float32": 0, "float16": 1, "bfloat16": 2}
_OF_DTYPES = ("precision.autocast", "precision.weights")


def entries_for(
    key: str, value: Value, tree: Mapping[str, Any], now: Value | None, found: Sequence[Path]
) -> tuple[Entry, ...]:
    """The entries for a setting at places that were found by name; none if it is unclear which place is meant.

    ``now`` is the loop's present value: a word in the config is replaced only if it means this value.
    """
    exact = any(".".join(path) == key for path in found)
    if not exact and not without_parts_of_a_total({key: value}, tree):
        return ()
    present = {path: at(tree, path) for path in found}
    if sorted(map(_name, found)) == ["bf16", "fp16"] and found[0][:-1] == found[1][:-1]:
        wanted = {"bf16": value == "bfloat16", "fp16": value == "float16"}
        are_switches = all(isinstance(one, bool | None) for one in present.values())
        pair = (Entry(path, wanted[_name(path)], only_there=not wanted[_name(path)]) for path in found)
        return tuple(pair) if are_switches else ()
    section, _, own = key.partition(".")
    # Certain places: a name that only this setting has, or the key's last part inside a section of the key's name.
    sure = {path for path in found if _name(path) != own or any(section in part.lower() for part in path[:-1])}
    words = [path for path in sure if isinstance(present[path], str)]
    beside = at(tree, words[0][:-1]) if len(words) == 1 else {}
    names = table().names.get(key, Names()).switches
    switches = [name for name, one in beside.items() if isinstance(one, bool) and _name((name,)) in names]
    if len(switches) == 1:
        word, switch = words[0], (*words[0][:-1], switches[0])
        agrees = now is None or (_means(present[word], now) if beside[switches[0]] else now == "none")
        said = _in_family(present[word], value) if key in _OF_DTYPES else value
        if not agrees or said is None or not {*found} <= {word, switch}:
            return ()
        return (Entry(switch, False),) if value == "none" else (Entry(word, said), Entry(switch, True))
    if len(found) != 1:
        return ()
    said = _said_in_place_of(present[found[0]], found[0][-1], key, value, now, exact=exact, sure=bool(sure))
    return () if said is None else (Entry(found[0], said),)


def _said_in_place_of(
    present: object, name: str, key: str, value: Value, now: Value | None, *, exact: bool, sure: bool
) -> Scalar:
    """The word for a setting that replaces the present word; None if the present word may mean something else.

    ``exact``: the path is the setting's full key. ``sure``: the name means only this setting.
    """
    if is_interpolation(present):
        return value  # is not written: the document raises an error that names the computed value
    if isinstance(present, str) and isinstance(value, str):
        agrees = exact or (_means(present, now) if key in _OF_DTYPES else present == now and sure)
        return (_in_family(present, value) if key in _OF_DTYPES else value) if agrees else None
    if isinstance(present, bool):
        return in_the_words_of(present, name, key, value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(present, str) and present.isascii() and present.isdigit() and isinstance(value, int) and is_number:
        return str(value)
    return value if is_number and isinstance(present, int | float) else None


def places_of(key: str, tree: Mapping[str, Any], mode: Mode) -> list[Path]:
    """The paths of values that may be this setting, found by name.

    ``mode`` decides between sections for training and sections for evaluation.
    """
    places = [(path, node) for path, node in walk(tree) if path and not isinstance(node, dict | list)]
    if exact := [path for path, _ in places if ".".join(path) == key]:
        return exact
    names = {key.rpartition(".")[2], *table().names.get(key, Names()).words, *_switches_of(key)}
    precisions = (*table().types[0], "amp_fp16", "amp_bf16")  # `precision` may be a metric
    found = [
        path for path, node in places if _name(path) in names and (_name(path) != "precision" or node in precisions)
    ]
    found = [path for path in found if "offload" not in " ".join(path).lower()]  # settings of offloading
    evaluating = [path for path in found if evaluates(path)]
    if mode is Mode.INFER:
        return evaluating or found
    return [path for path in found if path not in evaluating]


def without_parts_of_a_total(settings: Mapping[str, Value], tree: Mapping[str, Any]) -> Mapping[str, Value]:
    """The settings, without batch size and accumulation if the config also has their total of samples."""
    mappings = (node for _, node in walk(tree) if isinstance(node, dict))
    named = ({_name((name,)) for name in mapping} for mapping in mappings)
    has_total = any(total in names and names & parts for names in named for total, parts in table().totals.items())
    return {key: value for key, value in settings.items() if not has_total or key not in _MAKE_A_TOTAL}


def in_the_words_of(present: object, name: str, key: str, value: Value) -> Scalar:
    """A setting's value in the config's own vocabulary: ``bf16-mixed`` if the present value is ``32-true``.

    It is the value itself if the present value belongs to no vocabulary. It is None if the present value is a boolean
    or a number that cannot express it. ``name`` is the name of the entry.
    """
    if isinstance(present, bool) and not isinstance(value, bool):
        values = _switches_of(key).get(_name((name,)))
        return value == values[0] if values and value in values else None
    if key in _OF_DTYPES and (said := _in_family(present, value)) is not None:
        return said
    is_number = isinstance(present, int | float) and not isinstance(present, bool)
    return None if is_number and isinstance(value, str | bool) else value


def _switches_of(key: str) -> dict[str, tuple[Value, Value]]:
    """The names of booleans for a setting, each with the setting's values for true and false."""
    found = table().names.get(key, Names())
    return {name: (value, found.otherwise) for value, names in found.booleans.items() for name in names}


def _name(path: Sequence[str]) -> str:
    return _WITHIN_A_NAME.sub("_", path[-1]).lower()


def _means(present: object, now: Value | None) -> bool:
    """Whether a config's word is the loop's present value, literally or as a name of the same number type."""
    place = _DTYPES.get(now) if now is not None else None
    return present == now or (place is not None and any(family[place] == present for family in table().types))


def _in_family(present: object, value: Value) -> Scalar | None:
    """A number type in the vocabulary of a config's present word; None if the word is in no vocabulary."""
    word = table().types[0][0] if str(present) in _OTHERS_OF_LIGHTNING else present
    family = next((family for family in table().types if word in family), None)
    return family[_DTYPES[value]] if family and value in _DTYPES and not isinstance(present, bool) else None
