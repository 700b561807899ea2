"""Tells which program reads a config, by its keys; and the names that programs and people have for settings."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from advisor.export.configs.document import walk
from advisor.files.config_file import parsed
from advisor.records import ConfigKind, Value

# A program is believed from this number of names on. A count.
ENOUGH = 2
_SUBCOMMANDS = ("fit", "validate", "test", "predict")
# Deepest mapping of a program's arguments, as in `trainer: args:`. Levels.
_DEEPEST_HOME = 2
# Names of mappings that hold a program's arguments.
_NESTED = ("training_args", "training_arguments", "training", "train", "trainer", "args", "train_args")
# What a config says for a setting: the name of an entry that takes the value as it is; or for some values entries with
# the words that they take. A name may lead through mappings, as in `a.b`. An entry whose name ends in `?` is written
# only where the config has something else there; one in `!` says the setting only where it is there. `*` stands for
# all other values, and as a word for the value itself.
Words = Mapping[str, Value | None]
Rules = Mapping[str, str | Mapping[Value, Words]]


class Program(msgspec.Struct, frozen=True):
    """A program that reads configs: the names that identify it, and its words for settings.

    ``own`` are argument names that hardly any other program has; ``values`` identify it by their content. ``shared``
    names count if a ``sure`` name is there too, by default any own name. No name counts if a name of ``others`` is
    there: programs that adopted names of this one.
    """

    rules: Rules
    own: frozenset[str]
    sure: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    values: dict[str, frozenset[str]] = {}


class Names(msgspec.Struct, frozen=True):
    """Names in a config that mean this setting only, besides the last part of its key.

    ``words`` are keys that hold its value; it is replaced if it means the loop's present value. ``booleans`` mean the
    setting's value when true, and ``otherwise`` when false. ``switches`` switch the word next to them on.
    """

    words: frozenset[str] = frozenset()
    booleans: dict[str, frozenset[str]] = {}
    otherwise: str = ""
    switches: frozenset[str] = frozenset()


class Table(msgspec.Struct, frozen=True):
    """All words. ``totals`` follow from their parts beside them; ``types`` are ways to write types of numbers."""

    programs: dict[ConfigKind, Program]
    names: dict[str, Names]
    totals: dict[str, frozenset[str]]
    types: tuple[tuple[str, ...], ...]


@functools.cache
def table() -> Table:
    """The table, ``words.yaml``, read once."""
    path = Path(__file__).with_name("words.yaml")
    return msgspec.convert(parsed(path.read_text(encoding="utf-8"), path.name), Table)


def kind_of(tree: Mapping[str, Any]) -> ConfigKind:
    """The kind with the most of its own names in a config; plain if none has enough."""
    defaults = tree.get("defaults")
    composed = isinstance(defaults, list) and (
        "_self_" in defaults or any(isinstance(item, dict) and len(item) == 1 for item in defaults)
    )
    # What Hydra makes of a config has classes, and values that have to be given.
    made = (node == "???" or (isinstance(node, dict) and "_target_" in node) for _, node in walk(tree))
    if "hydra" in tree or composed or any(made):
        return ConfigKind.HYDRA
    found = {kind: max(names_of(kind, mapping) for _, mapping in _places(tree)) for kind in table().programs}
    found[ConfigKind.LIGHTNING] = _names_of_lightning(tree)
    best = max(found, key=lambda kind: found[kind])
    return best if found[best] >= ENOUGH else ConfigKind.PLAIN


def names_classes(tree: Mapping[str, Any]) -> bool:
    """Whether a config has classes as jsonargparse reads them, which refuses names that it does not know."""
    return any(isinstance(node, dict) and "class_path" in node for _, node in walk(tree))


def home_of(kind: ConfigKind, tree: Mapping[str, Any]) -> tuple[str, ...]:
    """The path of the mapping whose keys are the program's arguments: often the top level."""
    if kind is ConfigKind.LIGHTNING:
        if command := _subcommand(tree):
            return (command, *home_of(kind, tree[command]))
        trainer = table().programs[kind]
        arguments = trainer.own | trainer.values.keys() | trainer.shared
        return ("trainer",) if "trainer" in tree or len(arguments & tree.keys()) < ENOUGH else ()
    return max(_places(tree), key=lambda place: names_of(kind, place[1]))[0] if kind in table().programs else ()


def _places(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """The mappings that may be a program's arguments, by path: the whole tree, and mappings of certain names in it."""
    yield path, tree
    for name in _NESTED if len(path) < _DEEPEST_HOME else ():
        if isinstance(tree.get(name), dict):
            yield from _places(tree[name], (*path, name))


def names_of(kind: ConfigKind, mapping: Mapping[str, Any]) -> int:
    """The number of a kind's own names in a mapping; 0 if names of another program are there too."""
    program = table().programs[kind]
    if program.others & mapping.keys():
        return 0
    own = program.own & mapping.keys()
    own |= {name for name, values in program.values.items() if str(mapping.get(name)) in values}
    sure = program.sure or program.own | program.values.keys()
    return len(own) + (len(program.shared & mapping.keys()) if sure & own else 0)


def _names_of_lightning(tree: Mapping[str, Any]) -> int:
    """The number of Lightning's own names, under ``trainer:`` in a LightningCLI's config, or at the top level."""
    if command := _subcommand(tree):
        return _names_of_lightning(tree[command])
    trainer = tree.get("trainer")
    if "seed_everything" in tree and isinstance(trainer, dict | None) and "trainer" in tree:
        return ENOUGH + len(trainer or ())
    inside = names_of(ConfigKind.LIGHTNING, trainer) if isinstance(trainer, dict) else 0
    # Other programs share its words for a precision.
    is_sure = table().programs[ConfigKind.LIGHTNING].own & tree.keys()
    return inside or (names_of(ConfigKind.LIGHTNING, tree) if is_sure else 0)


def _subcommand(tree: Mapping[str, Any]) -> str:
    """The subcommand of a LightningCLI whose arguments a config has under its name; empty for none."""
    return next((name for name in _SUBCOMMANDS if isinstance(tree.get(name), dict) and "trainer" in tree[name]), "")
