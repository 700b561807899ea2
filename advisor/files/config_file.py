"""Reading the user's config files, and settings: YAML, JSON or TOML. ``1e-3`` is a number, as in YAML 1.2."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from advisor.errors import UsageError
from advisor.files.paths import content_of

# The errors of PyYAML for a text that it cannot read: its own, and Python's errors for a bad number or date.
YAML_FAILURES = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError)
_SHOWN = 40  # characters of a bad value in a message
_YAML = ("", ".yaml", ".yml")  # endings of YAML; another unknown ending is read as YAML too, but has another hint
_OF_SETTINGS = re.compile(r"\w+\.\w|perf_advisor$")
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d{1,3}")


class ConfigLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which also reads ``1e-3`` as a number, and names the line of a bad value."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Make the value of a node. Raises ConstructorError if the text does not fit the type that its tag names."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            if not isinstance(node, yaml.ScalarNode):
                raise
            problem = f"{node.value[:_SHOWN]!r} cannot be read as {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    of_pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] = dict  # makes a mapping of JSON


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which also quotes words that ConfigLoader would read as numbers."""


for _reader_or_writer in (ConfigLoader, _Dumper):
    _reader_or_writer.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


class TagsAsWritten(ConfigLoader):
    """Reads a value after a tag such as ``!include`` as text. Of the tags of Python objects, it allows only tuples."""


class SettingsLoader(ConfigLoader):
    """Reads a tagged value as null. Refuses a document that is tagged as a whole, and a setting that is given twice."""

    @staticmethod
    def of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Make a mapping of JSON. Raises ValueError for a setting that is given twice."""
        for name in _repeated(name for name, _ in pairs):
            raise ValueError(f"{name[:_SHOWN]!r} stands there twice")
        return dict(pairs)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Make a mapping of YAML. Raises ConstructorError for a setting that is given twice."""
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        keys = [key for key, _ in pairs if isinstance(key, yaml.ScalarNode)]
        for name in _repeated(key.value for key in keys):
            last = next(key.start_mark for key in reversed(keys) if key.value == name)
            raise yaml.constructor.ConstructorError(None, None, f"{name[:_SHOWN]!r} stands there twice", last)
        for key, value in pairs:
            if key.value == "perf_advisor" and value.tag not in self.yaml_constructors:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the settings are behind {value.tag}", value.start_mark
                )
        return super().construct_mapping(node, deep)

    def construct_document(self, node: yaml.Node) -> Any:
        """Make the document. Raises ConstructorError if the whole document is behind an unknown tag."""
        if node.tag not in self.yaml_constructors:
            raise yaml.constructor.ConstructorError(None, None, f"all of it is behind {node.tag}", node.start_mark)
        return super().construct_document(node)


def _repeated(keys: Iterable[str]) -> list[str]:
    """The repeated keys that are settings or their section. Keys of other programs may repeat."""
    return [key for key, count in Counter(keys).items() if count > 1 and _OF_SETTINGS.match(key)]


def _untagged(loader: Any, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


TagsAsWritten.add_multi_constructor("!", _untagged)
_TUPLE = "tag:yaml.org,2002:python/tuple"
TagsAsWritten.add_constructor(_TUPLE, yaml.FullLoader.construct_python_tuple)  # type: ignore[type-var]
SettingsLoader.add_constructor(None, lambda loader, node: None)


def is_toml(path: str | Path) -> bool:
    """Whether a file is TOML, by its name."""
    return Path(path).suffix.lower() == ".toml"


def parsed(text: str, source: str, loader: type[ConfigLoader] = ConfigLoader) -> Any:
    """Parse a text in the format that the file name ``source`` ends with. Raises UsageError if it is not valid."""
    suffix, hint = Path(source).suffix.lower(), "Fix the file and try again."
    form = {".toml": "TOML", ".json": "JSON", ".jsonc": "JSON"}.get(suffix, "YAML")
    try:
        if form == "TOML":
            return tomllib.loads(text)
        if form == "JSON":
            return json.loads(text.removeprefix("\ufeff"), object_pairs_hook=loader.of_pairs)
        return yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader
    except YAML_FAILURES as error:
        if form == "JSON" and re.search("//|/[*]", text):
            hint = "JSON has no comments: take them out, or write them with # and rename the file to .yaml."
        if form == "YAML" and suffix not in _YAML:
            hint = "Give a file of YAML, JSON or TOML; or leave out --config, and apply an exported tuned.yaml in code."
        raise UsageError(f"{source} is not valid {form}: {reason(error)}", hint) from error


def dumped(data: Any, **options: Any) -> str:
    """YAML text that ``parsed`` reads back as the same data."""
    return str(yaml.dump(data, Dumper=_Dumper, **options))


def read_config(path: str) -> dict[str, Any]:
    """Read the user's config for ``build(config)``. Raises UsageError if it cannot be read or is not a mapping."""
    data = parsed(read_text(path), path, TagsAsWritten)
    if not isinstance(data, dict | None):
        raise UsageError(
            f"{path} holds a {type(data).__name__}, not a mapping of names to values.",
            "--config is the file that build(config) reads; write one `name: value` a line.",
        )
    return data or {}


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file with its own line endings. Raises UsageError with the reason if it cannot be read."""
    try:
        return content_of(path).decode()
    except (OSError, ValueError) as error:  # ValueError: the text is not UTF-8, or the path is impossible
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path} cannot be read: {why}", "Check the path and that it is a UTF-8 text file.") from error


def reason(error: BaseException) -> str:
    """Return the reason of a parse error as one short line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split())[:200] or type(error).__name__
