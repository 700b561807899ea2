"""Facts of transformers' tables: the architecture of a name, the class of a configuration, its parts, its labels."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from advisor.errors import TargetError

# transformers' tables of classes, by what their labels are; the first that knows an architecture decides its class.
_TASKS = {
    "SEQ_TO_SEQ_CAUSAL_LM": "decoded tokens",
    "SPEECH_SEQ_2_SEQ": "decoded tokens",
    "MASKED_LM": "tokens",
    "CAUSAL_LM": "tokens",
    "CTC": "characters",
    "ZERO_SHOT_IMAGE_CLASSIFICATION": "pairs",
    "IMAGE_CLASSIFICATION": "class",
    "VIDEO_CLASSIFICATION": "class",
    "AUDIO_CLASSIFICATION": "class",
    "SEMANTIC_SEGMENTATION": "pixels",
    "OBJECT_DETECTION": "",
    "IMAGE_TEXT_TO_TEXT": "tokens",
    "SEQUENCE_CLASSIFICATION": "class",
    "TOKEN_CLASSIFICATION": "token classes",
    "QUESTION_ANSWERING": "span",
    "DEPTH_ESTIMATION": "",
    "IMAGE_SEGMENTATION": "",
    "UNIVERSAL_SEGMENTATION": "",
    "TIME_SERIES_PREDICTION": "future",
    "PRETRAINING": "",
}
# A number of parameters, as in "mamba-2.8b": its digits belong to no architecture.
_SIZE = re.compile(r"(?<![a-z0-9.])\d+(\.\d+)?[bm](?![a-z0-9])")
# Words of names whose architecture is called otherwise.
_MEANT = {"debertav3": "deberta-v2", "opus": "marian", "qwen": "qwen2", "donut": "donut-swin", "detrresnet": "detr"}
_SHORT = 3  # letters of a name that is inside other words by chance, as `led` is in distilled


def architecture_in(name: str, known: Iterable[str]) -> str | None:
    """The architecture in a model's name: the longest of whole words, with a version or without, else inside a word."""
    squeezed = {re.sub(r"[^a-z0-9]", "", kind): kind for kind in known}
    meant = {word: kind for word, kind in _MEANT.items() if kind in squeezed.values()} | squeezed
    words = re.split(r"[^a-z0-9]+", _SIZE.sub("", name.rpartition("/")[2].lower()))
    joined = ["".join(words[first:last]) for first in range(len(words)) for last in range(first, len(words) + 1)]
    whole = [form for text in joined for form in (text, text.rstrip("0123456789")) if form in meant]
    inside = [word for word in meant if len(word) > _SHORT and any(word in one for one in words)]
    found = max(whole or inside, key=len, default=None)
    return meant[found] if found else None


def class_for(transformers: Any, config: Any) -> Any:
    """The class that a configuration was saved from; else the first of its architecture, preferably with a head.

    Classes in no table of transformers, such as key point models and parts of composite models, are searched in the
    module next to the configuration's.
    """
    kinds = [kind for name in config.architectures or () if (kind := getattr(transformers, name, None)) is not None]
    kinds += _kinds_for(transformers, config)
    if not kinds:
        raise TargetError(
            f"transformers has no model for the configuration {type(config).__name__}.",
            "Return the model itself from a build() of your own.",
        )
    whole = (kind for kind in kinds if kind.config_class is None or isinstance(config, kind.config_class))
    return next(whole, kinds[0])


def _kinds_for(transformers: Any, config: Any) -> Iterator[Any]:
    """The classes of a configuration's architecture; those whose head has known labels come first."""
    heads = [name for task in _TASKS for name in _names(f"MODEL_FOR_{task}", config.model_type)]
    # Models with a head come before others, and whole models before parts.
    order = lambda kind: 0 if "For" in kind.__name__ else 1 if kind.__name__.endswith("Model") else 2  # noqa: E731
    beside = sorted(_beside(transformers, config), key=order)
    yield from filter(None, (getattr(transformers, name, None) for name in heads))
    yield from filter(_forecasts, beside)
    yield from filter(None, (getattr(transformers, name, None) for name in _names("MODEL", config.model_type)))
    yield from beside


def _beside(transformers: Any, config: Any) -> Iterator[Any]:
    """The model classes for this configuration, from the module next to the configuration's."""
    try:
        module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    except ImportError:
        return
    for kind in vars(module).values():
        is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
        if is_model and kind.config_class is type(config) and kind.forward is not nn.Module.forward:
            yield kind


def _forecasts(kind: Any) -> bool:
    """Whether a class has a head that is trained on a series' future values."""
    return "For" in kind.__name__ and "future_values" in inspect.signature(kind.forward).parameters


def labels_of(model: Any) -> str:
    """The kind of labels that a model's head is trained on; empty where that is unknown."""
    names = {kind.__name__ for kind in type(model).__mro__}
    for task, labels in _TASKS.items():
        if any(not names.isdisjoint(_names(f"MODEL_FOR_{task}", kind)) for kind in _table(f"MODEL_FOR_{task}")):
            return labels
    return "future" if _forecasts(type(model)) else ""


def _table(name: str) -> dict[str, Any]:
    return getattr(importlib.import_module("transformers.models.auto.modeling_auto"), f"{name}_MAPPING_NAMES", {})


def _names(table: str, architecture: str) -> tuple[str, ...]:
    """The names of an architecture's classes in one of transformers' tables."""
    value = _table(table).get(architecture, ())
    return (value,) if isinstance(value, str) else tuple(value)


def text_of(config: Any) -> Any:
    """The text part of a configuration; the encoder's if encoder and decoder both have one."""
    try:
        return config.get_text_config()
    except ValueError:  # there are several
        return config.get_text_config(encoder=True)


def parts_of(config: Any) -> list[Any]:
    """A configuration, and all its parts, such as ``text_config``."""
    parts = [part for name in config.sub_configs if (part := getattr(config, name, None)) is not None]
    return [config, *(inner for part in parts for inner in parts_of(part))]


def said_by(config: Any, name: str) -> Any:
    """An attribute of a configuration, or of the first of its parts that has it; None where none has."""
    return next((value for part in parts_of(config) if (value := getattr(part, name, None)) is not None), None)
