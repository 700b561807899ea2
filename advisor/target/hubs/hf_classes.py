"""The class that a Hugging Face configuration means, and the labels of its head, by transformers' own tables."""

from __future__ import annotations

import importlib
from typing import Any

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
    "OBJECT_DETECTION": "boxes",
    "SEQUENCE_CLASSIFICATION": "class",
    "TOKEN_CLASSIFICATION": "token classes",
    "QUESTION_ANSWERING": "span",
    "MULTIPLE_CHOICE": "choice",
    "DEPTH_ESTIMATION": "",
    "IMAGE_TEXT_TO_TEXT": "tokens",
    "IMAGE_SEGMENTATION": "",
    "UNIVERSAL_SEGMENTATION": "",
}


def class_for(transformers: Any, config: Any) -> Any:
    """The class that a configuration was saved from, else the first of its architecture, with a head before without."""
    for name in (*(config.architectures or ()), *_classes_of(config.model_type)):
        if (kind := getattr(transformers, name, None)) is not None:
            return kind
    raise TargetError(
        f"transformers has no model for the configuration {type(config).__name__}.",
        "Return the model itself from a build() of your own.",
    )


def labels_of(model: Any) -> str:
    """The kind of labels that a model's head is trained on; empty where that is unknown."""
    names = [kind.__name__ for kind in type(model).__mro__]
    for task, labels in _TASKS.items():
        known = {name for value in _table(f"MODEL_FOR_{task}").values() for name in _names(value)}
        if any(name in known for name in names):
            return labels
    return ""


def _classes_of(model_type: str) -> list[str]:
    tables = [*(f"MODEL_FOR_{task}" for task in _TASKS), "MODEL"]
    return [name for table in tables for name in _names(_table(table).get(model_type, ()))]


def _table(name: str) -> dict[str, Any]:
    tables = importlib.import_module("transformers.models.auto.modeling_auto")
    return getattr(tables, f"{name}_MAPPING_NAMES", {})


def _names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
