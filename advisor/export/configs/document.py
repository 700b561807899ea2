"""A config file that a patch changes, whatever its format; and a walk over its values."""

import contextlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Self

from advisor.errors import UsageError
from advisor.files.config_file import parsed
from advisor.recipe.settings import SECTION
from advisor.records import Value

Path = tuple[str, ...]
Scalar = Value | None
_EVALUATION = frozenset(
    ["val", "valid", "validation", "validate", "eval", "evaluation", "evaluate", "dev", "test", "inference", "predict"]
)
_NEWLINE = re.compile(r"(?<!\r)\n")


class ObstacleError(Exception):
    """A path of a config can hold no value; the message is the end of "the config's ..."."""


class Document(ABC):
    """A config file's ``text``, and its ``tree``: plain Python objects with strings for keys.

    Tagged values are opaque objects in the tree, which a patch leaves alone.
    """

    tree: dict[str, Any]
    has_null = True

    def __init__(self, text: str) -> None:
        self.text = text

    @abstractmethod
    def texts_with(self, path: Path, value: Scalar) -> Iterable[str]:
        """Texts that may hold a value at a path, the best first. Raises ObstacleError where none can."""

    def place_of(self, path: Path) -> str:
        """A path in words."""
        return repr(".".join(path)) if path else "the top level"

    def changed(self, path: Path, value: Scalar) -> Self:
        """The config with a value at a path; mappings on the way are made. None removes it where there is no null.

        What is written is read again: it must hold that value, and all that was there before. Raises ObstacleError
        where no text does.
        """
        depth = 0
        node: Any = self.tree
        while depth < len(path) and holds(node, path[depth]):
            node, depth = child(node, path[depth]), depth + 1
        kind = "mapping" if isinstance(node, dict) else "list" if isinstance(node, list) else "value"
        needed = "value" if depth == len(path) else "mapping"
        if kind != needed and (node is not None or needed == "value"):
            raise ObstacleError(f"{self.place_of(path[:depth])} is a {kind}, not a {needed}")
        if is_interpolation(node):
            raise ObstacleError(f"{self.place_of(path)} is computed: `{node}`")
        if needed == "value" and isinstance(node, bool) == isinstance(value, bool) and node == value:  # true is not 1
            return self
        wanted = _with(self.tree, path, value)
        if value is None and not self.has_null:
            del at(wanted, path[:-1])[path[-1]]
        for text in self.texts_with(path, value):
            with contextlib.suppress(UsageError, ValueError, RecursionError):
                found = type(self)(text)
                if _canonical(found.tree) == _canonical(wanted):
                    return found
        raise ObstacleError(
            f"{self.place_of(path[:depth])} cannot be changed: the config's layout leaves no room, as it is shared "
            "through an anchor, or tagged, or ends in a block of text"
        )


class TomlDocument(Document):
    """A TOML config, changed through tomlkit, which keeps comments and layout. Raises UsageError for another text."""

    has_null = False

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.tree = parsed(text, "the config.toml")

    def texts_with(self, path: Path, value: Scalar) -> Iterator[str]:
        """The text with a value at a path, or without it if that is None: TOML has no null."""
        import tomlkit

        document = tomlkit.parse(self.text)
        node: Any = document
        for part in path[:-1]:
            if isinstance(node, MutableMapping) and part not in node:
                node[part] = {}
            node = node[int(part)] if isinstance(node, list) else node[part]
        if value is None:
            del node[path[-1]]
        else:
            node[int(path[-1]) if isinstance(node, list) else path[-1]] = value
        # All lines of a file end alike; tomlkit ends those that it adds with a newline alone.
        is_windows = "\n" in self.text and not _NEWLINE.search(self.text)
        yield _NEWLINE.sub("\r\n" if is_windows else "\n", tomlkit.dumps(document))


def _with(tree: Any, path: Path, value: Scalar) -> Any:
    """A copy of a tree with a value at a path; what an alias repeats stays as it was."""
    if not path:
        return value
    inner = _with(child(tree, path[0]), path[1:], value)
    if isinstance(tree, list):
        return [*tree[: int(path[0])], inner, *tree[int(path[0]) + 1 :]]
    return {**(tree or {}), path[0]: inner}


def _canonical(tree: Any) -> str:
    """A text that two trees share if they hold the same values of the same types."""
    return json.dumps(tree, sort_keys=True, default=repr)


def is_interpolation(value: object) -> bool:
    """Whether a word is computed when the config is read, as ``${model.width}`` is."""
    return isinstance(value, str) and "${" in value


def evaluates(path: Sequence[str]) -> bool:
    """Whether a part of a path names evaluation or prediction, such as ``val_loader``."""
    return any(part in _EVALUATION for name in path for part in name.lower().replace("-", "_").split("_"))


def at(tree: Any, path: Sequence[str]) -> Any:
    """The value at a path; None where there is none."""
    for part in path:
        tree = child(tree, part)
    return tree


def child(node: Any, name: str) -> Any:
    """A mapping's value or a list's item by its name; None where there is none."""
    if not holds(node, name):
        return None
    return node[int(name)] if isinstance(node, list) else node[name]


def holds(node: Any, name: str) -> bool:
    """Whether a mapping has a key, or a list an item of that place."""
    if isinstance(node, Mapping):
        return name in node
    return isinstance(node, list) and name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(node)


def walk(tree: Any) -> Iterator[tuple[Path, Any]]:
    """Everything in a config with its path, our own section left out. What an alias repeats comes once."""
    stack: list[tuple[Path, Any]] = [((), tree)]
    seen: set[int] = set()
    while stack:
        path, node = stack.pop()
        yield path, node
        if path == (SECTION,) or not isinstance(node, dict | list) or id(node) in seen:
            continue
        seen.add(id(node))
        named = node.items() if isinstance(node, dict) else ((str(place), item) for place, item in enumerate(node))
        stack += reversed([((*path, name), item) for name, item in named])


def resolved(tree: Any, parts: Sequence[str]) -> list[Path]:
    """The paths that dotted parts may mean: a key with dots in it takes several parts at once."""
    if not parts:
        return [()]
    found: list[Path] = []
    for taken in range(1, len(parts) + 1):
        name = ".".join(parts[:taken])
        if holds(tree, name):
            found += [(name, *rest) for rest in resolved(child(tree, name), parts[taken:])]
    return found
