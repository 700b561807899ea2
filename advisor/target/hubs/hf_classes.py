"""Facts that transformers' tables and sources hold: the class of a configuration, the labels of its head, its text."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
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
    "OBJECT_DETECTION": "boxes",
    "IMAGE_TEXT_TO_TEXT": "tokens",
    "SEQUENCE_CLASSIFICATION": "class",
    "TOKEN_CLASSIFICATION": "token classes",
    "QUESTION_ANSWERING": "span",
    "MULTIPLE_CHOICE": "choice",
    "DEPTH_ESTIMATION": "",
    "IMAGE_SEGMENTATION": "",
    "UNIVERSAL_SEGMENTATION": "masks",
    "TIME_SERIES_PREDICTION": "future",
    "PRETRAINING": "",
}
# Parts of parts of a configuration that are looked at. A count.
_DEPTH = 2
# Parts of a configuration that are about images and sounds, the first that says something being heard.
_SEEN_OR_HEARD = (
    "vision_config",
    "audio_config",
    "encoder_config",
    "encoder",
    "backbone_config",
    "semantic_model_config",
)


def class_for(transformers: Any, config: Any) -> Any:
    """The class that a configuration was saved from, else the first of its architecture, with a head before without.

    Classes that are in no table of transformers, as those for key points and the parts of composite models, are looked
    for in the module beside the configuration's.
    """
    saved = config.architectures or ()
    kinds = [kind for name in saved if (kind := getattr(transformers, name, None)) is not None]
    kinds += filter(lambda kind: not _is_pretrained_on_labels(kind), _kinds_for(transformers, config))
    if kinds:
        return next((kind for kind in kinds if _takes(kind, config)), kinds[0])
    raise TargetError(
        f"transformers has no model for the configuration {type(config).__name__}.",
        "Return the model itself from a build() of your own.",
    )


def _kinds_for(transformers: Any, config: Any) -> Iterator[Any]:
    """The classes of a configuration's architecture: those with a head whose labels are known come first."""
    tables = [f"MODEL_FOR_{task}" for task in _TASKS]
    heads = [name for table in tables for name in _names(_table(table).get(config.model_type, ()))]
    plain = _names(_table("MODEL").get(config.model_type, ()))
    beside = sorted(_beside(transformers, config), key=_without_head)
    yield from filter(None, (getattr(transformers, name, None) for name in heads))
    yield from (kind for kind in beside if _forecasts(kind))
    yield from filter(None, (getattr(transformers, name, None) for name in plain))
    yield from beside


def _takes(kind: Any, config: Any) -> bool:
    """Whether a class is made of a configuration as it is, not of a part of it."""
    return kind.config_class is None or isinstance(config, kind.config_class)


def _forecasts(kind: Any) -> bool:
    """Whether a class has a head that is trained on a series' future values."""
    return "For" in kind.__name__ and "future_values" in inspect.signature(kind.forward).parameters


def _beside(transformers: Any, config: Any) -> Iterator[Any]:
    """The classes of models that take this configuration, of the module that belongs to that of the configuration."""
    named = type(config).__module__.replace(".configuration_", ".modeling_")
    try:
        module = importlib.import_module(named)
    except ImportError:
        return
    for kind in vars(module).values():
        is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
        if is_model and kind.config_class is type(config) and has_forward(kind) and not _is_pretrained_on_labels(kind):
            yield kind


def _without_head(kind: Any) -> int:
    """A key by which models with a head come before others, and whole models before parts."""
    return 0 if "For" in kind.__name__ else 1 if kind.__name__.endswith("Model") else 2


def has_forward(kind: type[nn.Module]) -> bool:
    """Whether a class of modules has a forward pass: one that only generates leaves it out."""
    return kind.forward is not nn.Module.forward


def text_of(config: Any) -> Any:
    """The part of a configuration that is about text; the encoder's where encoder and decoder have one each."""
    try:
        return config.get_text_config()
    except ValueError:  # there are several
        return config.get_text_config(encoder=True)


def value_in(config: Any, name: str) -> Any:
    """A value of a configuration; None where it has none, or one for each layer."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return None


def parts_of(config: Any, depth: int = _DEPTH) -> dict[str, Any]:
    """A configuration, by the empty name, and those that are parts of it or of its parts, as ``text_config``.

    ``depth``: of parts in parts, since a configuration may have itself as a part.
    """
    found = {"": config}
    for name, part in vars(config).items() if depth else ():
        if hasattr(part, "model_type"):
            found |= {f"{name}.{inside}".rstrip("."): one for inside, one in parts_of(part, depth - 1).items()}
    return found


def token_counts(model: Any) -> Iterator[int]:
    """The numbers of tokens that a model reads and that it writes, where it has layers for them."""
    reader = model.get_encoder() if model.config.is_encoder_decoder else model
    tables = (module for module in reader.modules() if isinstance(module, nn.Embedding))
    try:
        layers = [reader.get_input_embeddings()]
    except (NotImplementedError, AttributeError):  # as of an encoder that says of no table that it is its input's
        layers = [next(tables, None)] if model.config.is_encoder_decoder else []
    with contextlib.suppress(NotImplementedError, AttributeError):
        layers.append(model.get_output_embeddings())
    for layer in layers:
        count = getattr(layer, "num_embeddings", getattr(layer, "out_features", None))
        yield from (count,) if isinstance(count, int) else ()


def special_ids(config: Any) -> Iterator[int]:
    """The ids of tokens that stand for something other than text, such as an image."""
    named = ((name, value) for name, value in vars(config).items() if name.endswith(("_token_id", "_token_index")))
    return (value for _, value in named if isinstance(value, int))


def _is_pretrained_on_labels(kind: Any) -> bool:
    """Whether a class is for pretraining on labels of several kinds, which only its processor makes."""
    named = inspect.signature(kind.forward).parameters
    return kind.__name__.endswith("ForPreTraining") and any("labels" in name for name in named)


def labels_of(model: Any) -> str:
    """The kind of labels that a model's head is trained on; empty where that is unknown."""
    names = [kind.__name__ for kind in type(model).__mro__]
    for task, labels in _TASKS.items():
        known = {name for value in _table(f"MODEL_FOR_{task}").values() for name in _names(value)}
        if any(name in known for name in names):
            return labels
    return "future" if _forecasts(type(model)) else ""


def _table(name: str) -> dict[str, Any]:
    tables = importlib.import_module("transformers.models.auto.modeling_auto")
    return getattr(tables, f"{name}_MAPPING_NAMES", {})


def _names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def said_by(config: Any, name: str, depth: int = 3) -> Any:
    """An attribute of a configuration, or of the first of its parts that has it; None where none has.

    ``depth``: of parts in parts, since a configuration may have itself as a part.
    """
    if config is None or (value := value_in(config, name)) is not None or depth == 0:
        return None if config is None else value
    said = (said_by(value_in(config, part), name, depth - 1) for part in _SEEN_OR_HEARD)
    return next((value for value in said if value is not None), None)
