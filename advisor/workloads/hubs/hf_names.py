"""Which of transformers' architectures a model's name on the hub means, when its configuration is not on disk."""

import importlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

# A number of parameters, as in "mamba-2.8b": its digits belong to no architecture.
_SIZE = re.compile(r"(?<![a-z0-9.])\d+(\.\d+)?[bm](?![a-z0-9])")
# How the source of a configuration names the checkpoint that it is the default of, in two styles of transformers.
_CHECKPOINT = re.compile(r'(?:checkpoint="|\]\(https://huggingface\.co/)([\w.-]+/[\w.-]+)')
# Words of names whose architecture is called otherwise.
_MEANT = {"debertav3": "debertav2", "opus": "marian", "qwen": "qwen2"}


def architecture_of(name: str, transformers: Any) -> str | None:
    """The architecture that a name means: by transformers' own examples, or by its words."""
    by_words = architecture_in(name, transformers.CONFIG_MAPPING.keys())
    documented, kinds = _documented(Path(transformers.__file__).parent), _by_folder(transformers)
    named = [kind for folder in _folders_of(name.lower(), by_words, documented) for kind in kinds.get(folder, ())]
    if named:
        return by_words if by_words in named else named[0]
    return by_words


def _by_folder(transformers: Any) -> dict[str, list[str]]:
    """The architectures in each folder of transformers' models, that of the folder's own name first, then the shortest.

    The folder ``donut`` has ``donut-swin`` alone.
    """
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    found: dict[str, list[str]] = {}
    for kind in sorted(transformers.CONFIG_MAPPING, key=len):
        found.setdefault(auto.model_type_to_module_name(kind), []).append(kind)
    for folder, kinds in found.items():
        kinds.sort(key=lambda kind: kind.replace("-", "_") != folder)
    return found


def _folders_of(name: str, by_words: str | None, documented: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The folders that a documented name belongs to: this one, else the longest whose last part this one begins with.

    The beginning has to say more than the architecture in the name's words.
    """
    if name in documented:
        return documented[name]
    last, said = name.rpartition("/")[2], len(_squeezed(by_words or ""))
    by_last: dict[str, tuple[str, ...]] = {}
    for other, folders in documented.items():
        begin = other.rpartition("/")[2]
        whole_words = last.startswith(begin) and not last[len(begin) :][:1].isalnum()
        if whole_words and len(_squeezed(begin)) > said:
            by_last[begin] = (*by_last.get(begin, ()), *folders)
    return by_last[max(by_last, key=len)] if by_last else ()


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name)


def architecture_in(name: str, known: Iterable[str]) -> str | None:
    """The architecture in a model's name: whole words first, then the longest of the earliest."""
    words = [word for word in re.split(r"[^a-z0-9]+", _SIZE.sub("", name.rpartition("/")[2].lower())) if word]
    squeezed = {_squeezed(kind): kind for kind in known}
    for start in range(len(words)):
        for end in range(len(words), start, -1):
            joined = "".join(words[start:end])
            if kind := squeezed.get(joined) or squeezed.get(_MEANT.get(joined, "")):
                return kind
    for inside in (False, True):
        found = [
            (text.find(kind), -len(kind), kind)
            for text in words
            for kind in squeezed
            if len(kind) > (3 if inside else 2) and (kind in text if inside else text.startswith(kind))
        ]
        if found:
            return squeezed[min(found)[2]]
    return None


@cache
def _documented(package: Path) -> Mapping[str, tuple[str, ...]]:
    """The names that the sources of transformers' configurations give as examples, each with its models' folders."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(package.glob("models/*/configuration_*.py")):
        for name in _CHECKPOINT.findall(path.read_text(encoding="utf-8")):
            folders = found.get(name.lower(), ())
            found[name.lower()] = folders if path.parent.name in folders else (*folders, path.parent.name)
    return found
