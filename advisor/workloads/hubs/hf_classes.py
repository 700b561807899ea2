"""Look-ups in transformers' tables: the architecture for a name, and a configuration's class, parts and labels."""

import contextlib
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from advisor.errors import TargetError

# The kind of labels for each of transformers' tables. The first table that lists an architecture decides its class.
_LABELS = {
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM": "tokens",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ": "tokens",
    "MODEL_FOR_MASKED_LM": "tokens",
    "MODEL_FOR_CAUSAL_LM": "tokens",
    "MODEL_FOR_CTC": "characters",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION": "pairs",
    "MODEL_FOR_IMAGE_CLASSIFICATION": "class",
    "MODEL_FOR_VIDEO_CLASSIFICATION": "class",
    "MODEL_FOR_AUDIO_CLASSIFICATION": "class",
    "MODEL_FOR_SEMANTIC_SEGMENTATION": "pixels",
    "MODEL_FOR_OBJECT_DETECTION": "",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT": "tokens",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION": "class",
    "MODEL_FOR_TOKEN_CLASSIFICATION": "token classes",
    "MODEL_FOR_QUESTION_ANSWERING": "span",
    "MODEL_FOR_DEPTH_ESTIMATION": "",
    "MODEL_FOR_IMAGE_SEGMENTATION": "",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION": "",
    "MODEL_FOR_PRETRAINING": "",
}
_FORECASTS = "ForPrediction"  # in the names of forecasting classes, which are in no table
# A number of parameters, as in "mamba-2.8b". Its digits are not part of the architecture's name.
_SIZE = re.compile(r"(?<![a-z0-9.])\d+(\.\d+)?[bm](?![a-z0-9])")
# Words in model names, with the architecture if it has another name.
_MEANT = {"debertav3": "deberta-v2", "opus": "marian", "qwen": "qwen2", "donut": "donut-swin", "detrresnet": "detr"}
_SHORT = 3  # letters; so short a name can be part of a word by chance (`led` in distilled)


def architecture_in(name: str, known: Iterable[str]) -> str | None:
    """The longest architecture that is a whole word of a model's name, with or without version; else part of a word."""
    squeezed = {re.sub(r"[^a-z0-9]", "", kind): kind for kind in known}
    meant = {word: kind for word, kind in _MEANT.items() if kind in squeezed.values()} | squeezed
    words = re.split(r"[^a-z0-9]+", _SIZE.sub("", name.rpartition("/")[2].lower()))
    joined = ["".join(words[first:last]) for first in range(len(words)) for last in range(first, len(words) + 1)]
    whole = [form for text in joined for form in (text, text.rstrip("0123456789")) if form in meant]
    inside = [word for word in meant if len(word) > _SHORT and any(word in one for one in words)]
    found = max(whole or inside, key=len, default=None)
    return meant[found] if found else None


def class_for(config: Any) -> Any:
    """The class from which a configuration was saved, else its architecture's first class, preferably with a head."""
    import transformers

    kinds = [kind for name in config.architectures or () if (kind := getattr(transformers, name, None)) is not None]
    names = {kind: kind.__name__ for kind in _beside(config)}
    beside = sorted(names, key=lambda kind: ("For" not in names[kind], not names[kind].endswith("Model")))
    kinds += [kind for kind, _ in _in_tables(config, _LABELS)]
    kinds += [kind for kind in beside if _FORECASTS in names[kind]]
    kinds += [kind for kind, _ in _in_tables(config, {"MODEL": ""})]
    kinds += beside  # classes in no table: key point models, parts of composite models
    if not kinds:
        raise TargetError(
            f"transformers has no model class for the configuration {type(config).__name__}.",
            "Return the model itself from a build() of your own.",
        )
    whole = (kind for kind in kinds if kind.config_class is None or isinstance(config, kind.config_class))
    return next(whole, kinds[0])


def labels_of(model: Any) -> str:
    """The kind of labels on which a model's head is trained; empty if unknown."""
    if _FORECASTS in type(model).__name__:
        return "future"
    named = (labels for kind, labels in _in_tables(model.config, _LABELS) if isinstance(model, kind))
    return next(named, "tokens" if model.loss_type == "ForCausalLM" else "")  # parts are in no table


def _in_tables(config: Any, tables: Mapping[str, str]) -> Iterator[tuple[Any, str]]:
    """The classes for a configuration's architecture in these tables of transformers, each with its table's labels."""
    import transformers

    for table, labels in tables.items():
        known = getattr(transformers, f"{table}_MAPPING", {})
        found: Any = ()
        with contextlib.suppress(ValueError):  # a table may name a class that does not exist
            found = next(filter(None, (known.get(kind, None) for kind in type(config).__mro__)), ())
        yield from ((kind, labels) for kind in (found if isinstance(found, tuple) else (found,)))


def _beside(config: Any) -> Iterator[Any]:
    """The model classes for this configuration, from the modeling module beside the configuration's module."""
    import transformers

    try:
        module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    except ImportError:
        return
    for kind in vars(module).values():
        is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
        if is_model and kind.config_class is type(config) and kind.forward is not nn.Module.forward:
            yield kind


def text_of(config: Any) -> Any:
    """The text part of a configuration; the encoder's part if the decoder has one too."""
    try:
        return config.get_text_config()
    except ValueError:  # there are several text parts
        return config.get_text_config(encoder=True)


def parts_of(config: Any) -> list[Any]:
    """A configuration, and all its parts, such as ``text_config``."""
    parts = [part for name in config.sub_configs if (part := getattr(config, name, None)) is not None]
    return [config, *(inner for part in parts for inner in parts_of(part))]
