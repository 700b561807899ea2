"""The interface of a config file to a patch, whatever its format; and a walk over its values."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from advisor.recipe.settings import SECTION
from advisor.records import Value

Path = tuple[str, ...]
Scalar = Value | None
_EVALUATION = frozenset(
    ["val", "valid", "validation", "validate", "eval", "evaluation", "evaluate", "dev", "test", "inference", "predict"]
)


class Document(Protocol):
    """A config file. ``tree`` is what it holds, as plain Python with words for keys; what a tag marks is ``Opaque``."""

    tree: dict[str, Any]

    def obstacle(self, path: Path) -> str:
        """The reason why a path can hold no value, as the end of "the config's ..."; empty where it can."""

    def replace_or_add(self, path: Path, value: Scalar) -> None:
        """Put a value at a path; mappings on the way are made."""

    def text(self) -> str:
        """The text with all changes. Raises UsageError where the layout does not allow them."""


class Opaque:
    """A value that stands for something else: a tag makes it, or it is no value of YAML's own kinds."""

    def __repr__(self) -> str:
        return "<tagged>"


def is_interpolation(value: object) -> bool:
    """Whether a word is computed when the config is read, as ``${model.width}`` is."""
    return isinstance(value, str) and "${" in value


def same_value(old: object, new: Scalar) -> bool:
    """Whether two values are the same; true is not 1."""
    return isinstance(old, bool) == isinstance(new, bool) and old == new


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
    if isinstance(node, Mapping):
        return node.get(name)
    inside = isinstance(node, list) and is_index(name) and int(name) < len(node)
    return node[int(name)] if inside else None


def is_index(name: str) -> bool:
    """Whether a part of a path is a place in a list."""
    return name.isascii() and name.isdigit() and len(name) < 10


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
    if isinstance(tree, list):
        item = child(tree, parts[0])
        return [(parts[0], *rest) for rest in resolved(item, parts[1:])] if item is not None else []
    if not isinstance(tree, dict):
        return []
    found: list[Path] = []
    for taken in range(1, len(parts) + 1):
        name = ".".join(parts[:taken])
        if name in tree:
            found += [(name, *rest) for rest in resolved(tree[name], parts[taken:])]
    return found
