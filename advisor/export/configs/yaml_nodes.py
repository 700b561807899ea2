"""YAML and JSON as PyYAML's nodes, which know where they stand in the text; and a value's text in a given style."""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from advisor.errors import UsageError
from advisor.export.configs.document import Opaque, Scalar
from advisor.files.config_file import YAML_FAILURES, ConfigLoader, dumped, reason, without_comments

TAG = "tag:yaml.org,2002:"
_MERGE = f"{TAG}merge"
# Line endings of YAML 1.1, as PyYAML reads them.
BREAKS = "\r\n\x85\u2028\u2029"
_LINE_END = re.compile(rf"\r\n|[{BREAKS}]")
_BOOLEANS = {
    word: pair
    for pair in (("true", "false"), ("yes", "no"), ("on", "off"))
    for spelling in (str.lower, str.capitalize, str.upper)
    for spelled in [(spelling(pair[0]), spelling(pair[1]))]
    for word, pair in ((spelled[0], spelled), (spelled[1], spelled))
}


# --- reading ----------------------------------------------------------------------------------------------------


def composed(text: str) -> tuple[Node | None, bool]:
    """The root of a YAML or JSON text, and whether it is JSON. Raises UsageError when it is not one mapping."""
    as_json = _json_root(text)
    root = as_json or _yaml_root(text)
    if root is None or isinstance(root, MappingNode) or _is_blank(root):
        return root, as_json is not None
    kind = "list" if isinstance(root, SequenceNode) else "single value"
    raise UsageError(
        f"the config holds a {kind} at its top level (line {line_of(text, root)}), not a mapping.",
        "Give a config of `key: value` lines.",
    )


def _yaml_root(text: str) -> Node | None:
    try:
        documents = list(yaml.compose_all(text, Loader=ConfigLoader))
    except YAML_FAILURES as error:
        raise UsageError(f"the config is not valid YAML: {reason(error)}.", "Fix the file and try again.") from error
    if len(documents) > 1:
        raise UsageError(
            f"the config holds {len(documents)} YAML documents.",
            "Give a config of one document, without `---` between.",
        )
    return documents[0] if documents else None


def _json_root(text: str) -> Node | None:
    """The root of a JSON text, with comments or without; None where it is no JSON.

    YAML's parser takes JSON too, but for tabs and for odd characters in texts: blanks stand for them.
    """
    for candidate in (text, without_comments(text)):
        with contextlib.suppress(ValueError, RecursionError, yaml.YAMLError):
            json.loads(candidate)
            readable = (one if one.isprintable() or one in "\r\n" else " " for one in candidate)
            return yaml.compose("".join(readable), Loader=ConfigLoader)
    return None


def line_of(text: str, node: Node) -> int:
    """The line on which a node starts, counted from 1."""
    return len(_LINE_END.findall(text, 0, node.start_mark.index)) + 1


def _is_blank(root: Node) -> bool:
    return isinstance(root, ScalarNode) and root.start_mark.index == root.end_mark.index


def children(node: Node) -> list[Node]:
    """The nodes right below a node, the keys of a mapping among them."""
    if isinstance(node, MappingNode):
        return [inner for pair in node.value for inner in pair]
    return list(node.value) if isinstance(node, SequenceNode) else []


def shared(root: Node | None) -> set[int]:
    """The ids of nodes that several places of the config lead to: anchors with aliases, and all below them."""
    visits: Counter[int] = Counter()
    stack = [root] if root is not None else []
    while stack:
        node = stack.pop()
        visits[id(node)] += 1
        if visits[id(node)] <= 2:
            stack += children(node)
    return {node_id for node_id, count in visits.items() if count > 1}


def entries_of(node: Node | None, key: str) -> list[tuple[Node, Node]]:
    """The entries of a mapping under one key; more than one when the config repeats it."""
    if not isinstance(node, MappingNode):
        return []
    return [pair for pair in node.value if isinstance(pair[0], ScalarNode) and pair[0].value == key]


def plain(node: Node | None, seen: dict[int, Any] | None = None) -> Any:
    """A node's value as plain Python; keys are words. A node that contains itself becomes such an object."""
    seen = {} if seen is None else seen
    if node is None:
        return {}
    if id(node) in seen:
        return seen[id(node)]
    if isinstance(node, ScalarNode):
        return loaded(node)
    if not node.tag.startswith(TAG) or node.tag.startswith(f"{TAG}python"):
        return Opaque()
    if isinstance(node, SequenceNode):
        items: list[Any] = []
        seen[id(node)] = items
        items += [plain(item, seen) for item in node.value]
        return items
    mapping: dict[str, Any] = {}
    seen[id(node)] = mapping
    own = [(key, value) for key, value in node.value if isinstance(key, ScalarNode)]
    for source in _merged(own):
        inherited = plain(source, seen)
        mapping |= inherited if isinstance(inherited, dict) else {}
    mapping |= {key.value: plain(value, seen) for key, value in own if key.tag != _MERGE}
    return mapping


def _merged(entries: Sequence[tuple[ScalarNode, Node]]) -> list[Node]:
    """The mappings that merge keys (``<<``) bring in, in the order in which they are applied: later ones override."""
    merged = [value for key, value in entries if key.tag == _MERGE]
    return [one for value in merged for one in (reversed(value.value) if isinstance(value, SequenceNode) else [value])]


def loaded(node: ScalarNode) -> object:
    """A scalar's value as Python; ``Opaque`` when its tag is unknown to the safe loader, or its text no such value."""
    if not node.tag.startswith(TAG):
        return Opaque()
    try:
        return yaml.constructor.SafeConstructor().construct_document(ScalarNode(node.tag, node.value))
    except YAML_FAILURES:
        return Opaque()


# --- spelling values --------------------------------------------------------------------------------------------


def spelled(value: Scalar, *, like: ScalarNode | None = None, as_json: bool = False) -> str:
    """A value as YAML, in the style of the scalar that it replaces: its quotes, or its way to write booleans."""
    if as_json:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        words = _BOOLEANS.get(like.value if like is not None and like.style is None else "", _BOOLEANS["true"])
        return words[0] if value else words[1]
    if not isinstance(value, str):
        return dumped(value).partition("\n")[0]
    style = like.style if like is not None else None
    if style == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return double_quoted(value) if style == '"' or not _is_plain(value) else value


def spelled_key(key: str, *, as_json: bool) -> str:
    """A key as it stands before its colon."""
    if as_json:
        return json.dumps(key, ensure_ascii=False)
    return key if _is_plain(key) else double_quoted(key)


def double_quoted(value: str) -> str:
    """A word in double quotes."""
    return dumped(value, default_style='"', width=2**31).rstrip("\n")


def _is_plain(value: str) -> bool:
    """Whether a word can stand without quotes, in a block as in a flow mapping."""
    try:
        found = [
            yaml.load(text, Loader=ConfigLoader)  # noqa: S506 - a safe loader
            for text in (f"[{value}, x]", f"k: {value}\n")
        ]
    except YAML_FAILURES:
        return False
    return found == [[value, "x"], {"k": value}]
