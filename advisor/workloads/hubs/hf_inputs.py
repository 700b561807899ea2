"""Made-up inputs of Hugging Face models: a maker for each name that a forward pass may take, and ways to combine them.

Shapes come from the configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from advisor.errors import TargetError
from advisor.records import TargetSpec
from advisor.step.batch import map_tensors, tensors_of
from advisor.workloads.guess import noise, typed, whole_numbers
from advisor.workloads.hubs.hf_classes import said_by, text_of
from advisor.workloads.sizing import output_of

USUAL_SIDE = 224
_USUAL_PATCH = 16
_FRAMES_HEARD = 200  # of a spectrogram whose length is free
_SOUND_LENGTH = 16000  # samples: one second at the usual rate
_BINS = 80  # of a spectrogram, by the usual number; the other one follows
_USUAL_VOCABULARY = 128  # of a model that takes characters without a table of them
_USUAL_STEPS = 512  # of a model that takes a series of any length
_USUAL_HORIZON = 24
# Inputs that say how many patches each image has: in time, in a column and in a row.
_GRIDS = ("grid_thw", "image_grid_thw")
# Inputs that are read inside a text, each with the model's method that makes vectors of it, and its token's name.
_READ_INSIDE = {
    "pixel_values": ("get_image_features", "image_token"),
    "input_features": ("get_audio_features", "audio_token"),
}
# Inputs that say of each token whether it is one of the text.
_KINDS = ("token_type_ids", "mm_token_type_ids")

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

Batch = dict[str, Any]
Make = Callable[[int], Batch]


@dataclass(frozen=True)
class ModelInputs:
    """The facts by which a model's inputs are made.

    ``length`` is that of a text: tokens; ``side`` that of images, unless their own: pixels.
    """

    model: Any
    spec: TargetSpec
    length: int
    side: int | None = None

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def accepted(self) -> Any:
        """The parameters of the forward pass, by name."""
        return inspect.signature(self.model.forward).parameters

    @property
    def shape(self) -> tuple[int, ...] | None:
        """One sample's shape as ``--input`` gives it."""
        return self.spec.input_shape[1:] if self.spec.input_shape else None

    @property
    def compares(self) -> bool:
        """Whether a model takes pairs of a text and an image or sound, which it tells from other pairs."""
        return "return_loss" in self.accepted and "input_ids" in self.accepted

    @property
    def vocabulary(self) -> int:
        """The number of tokens that there are: as the configuration says, or as many as the model has vectors for."""
        said = getattr(text_of(self.config), "vocab_size", None)
        try:
            table = self.model.get_input_embeddings()
        except (NotImplementedError, AttributeError):  # as of an encoder that says of no table that it is its input's
            table = next((module for module in self.model.modules() if isinstance(module, nn.Embedding)), None)
        counts = (said, getattr(table, "num_embeddings", None))
        return min((count for count in counts if isinstance(count, int)), default=_USUAL_VOCABULARY)

    def requires(self, name: str) -> bool:
        """Whether the forward pass has a parameter of this name without a default."""
        parameter = self.accepted.get(name)
        return parameter is not None and parameter.default is parameter.empty and parameter.kind not in _ANY_NUMBER

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these attributes in the configuration, or in its parts; else ``default``."""
        return next((value for name in names if (value := said_by(self.config, name)) is not None), default)

    def tokens(self, *shape: int, below: int | None = None) -> torch.Tensor:
        """Token ids without special ones, such as padding or the place of an image, to which models react."""
        text = text_of(self.config)
        named = [getattr(text, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")]
        several = (ids if isinstance(ids, list | tuple) else [ids] for ids in (*named, special_ids(self.config)))
        special = [i for ids in several for i in ids if isinstance(i, int)]  # a text may end in one of several
        low = max((i for i in special if 0 <= i < 10), default=-1) + 1
        tokens = whole_numbers(below or self.vocabulary, *shape, at_least=low)
        tokens[torch.isin(tokens, torch.tensor(special, dtype=torch.long))] = low
        return tokens


def special_ids(config: Any) -> list[int]:
    """The ids of tokens that stand for something other than text, such as an image."""
    named = vars(config).items()
    return [i for name, i in named if name.endswith(("_token_id", "_token_index")) and isinstance(i, int)]


# --- one input --------------------------------------------------------------------------------------------------------


def texts(about: ModelInputs, size: int) -> Batch:
    """Texts of random tokens."""
    ids = about.tokens(size, *(about.shape or (about.length,)))
    mask = {"attention_mask": torch.ones_like(ids)} if "attention_mask" in about.accepted else {}
    return {"input_ids": ids, **mask}


def images(about: ModelInputs, size: int) -> Batch:
    """Images of the configuration's size; in patches, or several as frames, where the model takes them so."""
    if grid := _grid_of(about):
        return _patches_of_a_grid(about, size, "pixel_values", grid)
    shape = about.shape if about.shape and len(about.shape) > 1 else None
    if shape is None:
        side = about.side or about.get("image_size", default=USUAL_SIDE)
        height, width = (side[0], side[-1]) if isinstance(side, list | tuple) else (side, side)
        frames = about.get("num_frames")
        shape = (*((frames,) if frames else ()), about.get("num_channels", default=3), height, width)
    fits = {"interpolate_pos_encoding": True} if about.side and "interpolate_pos_encoding" in about.accepted else {}
    return {"pixel_values": noise(size, *shape), **fits}


def _grid_of(about: ModelInputs) -> str:
    """The name of the input that says how many patches each image has; empty where the model takes none."""
    return next((name for name in _GRIDS if name in about.accepted), "")


def _patches_of_a_grid(about: ModelInputs, size: int, name: str, grid: str) -> Batch:
    """The patches of all images in one row, and how many there are of each; several of them are merged later."""
    patch = about.get("patch_size", default=_USUAL_PATCH)
    merged = about.get("spatial_merge_size", "merge_size", default=1)
    channels, height, width = about.shape if about.shape and len(about.shape) == 3 else (None, USUAL_SIDE, USUAL_SIDE)
    channels = channels or about.get("in_channels", "num_channels", default=3)
    rows, columns = (max(1, side // (patch * merged)) * merged for side in (height, width))
    values = channels * about.get("temporal_patch_size", "patch_temporal", default=1) * patch * patch
    sizes = {"merge_sizes": torch.full((size,), merged)} if "merge_sizes" in about.accepted else {}
    return {name: noise(size * rows * columns, values), grid: torch.tensor([[1, rows, columns]] * size), **sizes}


def sound(about: ModelInputs, size: int) -> Batch:
    """A second of sound, of a codec with a dimension for its channels; or a spectrogram under the same name."""
    bins, longest = about.get("num_mel_bins"), about.get("max_length")
    shape: tuple[int, ...] = (_SOUND_LENGTH,)
    if not about.get("conv_dim"):
        shape = (longest, bins) if bins and longest else (about.get("audio_channels", default=1), _SOUND_LENGTH)
    return {"input_values": noise(size, *(about.shape or shape))}


def spectrograms(about: ModelInputs, size: int) -> Batch:
    """Spectrograms of the length that the model takes, where its configuration says one."""
    bins, positions = about.get("num_mel_bins"), about.get("max_source_positions")
    free = about.get("feature_projection_input_dim", "input_feat_per_channel", "input_channels", "input_dim")
    shape: tuple[int, ...] = (_FRAMES_HEARD, free or bins or _BINS)
    if bins and (side := about.get("spec_size")):  # of the image that a spectrogram is folded into
        shape = (4 if about.get("enable_fusion") else 1, side * side // bins, bins)
    elif bins and positions and not free:
        shape = (bins, 2 * positions)  # two convolutions, the second with a stride of two
    longer = {"is_longer": torch.zeros(size, 1, dtype=torch.bool)} if "is_longer" in about.accepted else {}
    return {"input_features": noise(size, *(about.shape or shape)), **longer}


def past(about: ModelInputs, size: int) -> Batch:
    """The past of series, as long as the context and the longest lag before it, and what the model requires of it."""
    several = about.get("num_input_channels", "input_size", default=1)
    lags: list[int] = getattr(about.config, "lags_sequence", None) or [0]
    steps = min(about.get("context_length", default=_USUAL_STEPS), _USUAL_STEPS) + max(lags)
    shape = about.shape or ((steps, several) if several > 1 or about.get("num_input_channels") else (steps,))
    kinds = max(1, min(getattr(about.config, "cardinality", None) or [1]))
    made = {
        "past_values": noise(size, *shape),
        "past_observed_mask": torch.ones(size, *shape),
        "past_values_padding": torch.zeros(size, shape[0], dtype=torch.long),
        "past_time_features": noise(size, shape[0], about.get("num_time_features", default=0)),
        "static_real_features": noise(size, about.get("num_static_real_features", default=0)),
        "static_categorical_features": whole_numbers(
            kinds, size, about.get("num_static_categorical_features", default=0)
        ),
        "freq": torch.zeros(size, 1, dtype=torch.long),
    }
    return {name: values for name, values in made.items() if name == "past_values" or about.requires(name)}


def future(about: ModelInputs, batch: Batch) -> Batch:
    """The values that a model is trained to forecast, in as many channels as it forecasts."""
    size, channels = batch["past_values"].shape[0], batch["past_values"].shape[2:]
    horizon = about.get("prediction_length", "horizon_length") or _USUAL_HORIZON
    made = {
        "future_values": noise(size, horizon, *channels),
        "future_observed_mask": torch.ones(size, horizon, *channels),
        "future_time_features": noise(size, horizon, about.get("num_time_features", default=0)),
    }
    return {name: values for name, values in made.items() if name in about.accepted}


_MAKERS: dict[str, Callable[[ModelInputs, int], Batch]] = {
    "input_ids": texts,
    "pixel_values": images,
    "input_values": sound,
    "input_features": spectrograms,
    "past_values": past,
    "hidden_states": lambda about, size: _patches_of_a_grid(about, size, "hidden_states", _grid_of(about)),
}


def _mask(batch: Batch) -> torch.Tensor | None:
    """A mask that hides nothing of a text, or of a sound."""
    values = next((batch[name] for name in ("input_ids", "input_values") if name in batch), None)
    return None if values is None else torch.ones(len(values), values.shape[-1], dtype=torch.long)


def _pixel_mask(batch: Batch) -> torch.Tensor | None:
    images = batch.get("pixel_values")
    return None if images is None else torch.ones(len(images), *images.shape[-2:], dtype=torch.long)


def _boxes(batch: Batch) -> torch.Tensor | None:
    """The place of each word on a page: its left, upper, right and lower edge, as shares of the page."""
    ids = batch.get("input_ids")
    return None if ids is None else torch.tensor([0.25, 0.25, 0.75, 0.5]).expand(*ids.shape, 4).clone()


# Inputs that come with others; None where the others are not there.
_BESIDE: dict[str, Callable[[Batch], torch.Tensor | None]] = {
    "attention_mask": _mask,
    "padding_mask": _mask,
    "pixel_mask": _pixel_mask,
    "bbox": _boxes,
}


# --- all inputs of a batch --------------------------------------------------------------------------------------------


def ways_to_make(about: ModelInputs) -> list[Make]:
    """Makers of a model's inputs, the likeliest first. Raises TargetError where it requires inputs of another kind."""
    named = [name for name in _MAKERS if name in about.accepted and (name != "hidden_states" or _grid_of(about))]
    main = about.model.main_input_name
    main = main if main in named else next(filter(about.requires, named), next(iter(named), ""))
    groups = [[main], named] if main and len(named) > 1 and not about.compares else [named]
    required = [name for name in about.accepted if about.requires(name)]
    ways = [partial(_made, about, group) for group in groups]
    whole = [way for way in ways if main and way(1).keys() >= set(required)]
    if not whole:
        called = ", ".join((required or list(about.accepted))[:6])
        raise TargetError(
            f"the inputs of {type(about.model).__name__} are not known: it is called with {called}.",
            "Return (model, batch) from a build() of your own, with a dict of these as the batch.",
        )
    return [*_inside_a_text(about), *whole]


def _made(about: ModelInputs, names: list[str], size: int) -> Batch:
    """Several inputs in one batch, with what the model requires beside them, and boxes where it takes any."""
    batch = {name: value for made in names for name, value in _MAKERS[made](about, size).items()}
    for name, make in _BESIDE.items():
        wanted = about.requires(name) or (name == "bbox" and name in about.accepted)
        if wanted and name not in batch and (value := make(batch)) is not None:
            batch[name] = value
    return batch


def _inside_a_text(about: ModelInputs) -> Iterator[Make]:
    """Makers of texts with an image or a sound inside, for a model that reads such."""
    for name, (method, token) in _READ_INSIDE.items():
        key = next((key for key in (f"{token}_id", f"{token}_index") if hasattr(about.config, key)), "")
        if key and hasattr(about.model, method) and {name, "input_ids"} <= about.accepted.keys():
            if getattr(about.config, key) not in range(about.vocabulary):  # a default may be of another vocabulary
                setattr(about.config, key, about.vocabulary - 1)
            yield _with_places(about, name, method, getattr(about.config, key))


def _with_places(about: ModelInputs, name: str, method: str, token: int) -> Make:
    """A maker of texts that begin with the places of another input, at which ``token`` stands; and of that input."""

    @cache
    def places() -> int:
        """The number of vectors that the model makes of one sample; 0 where it does not take this form."""
        inputs = _made(about, [name], 1)
        if (grid := inputs.get(_grid_of(about))) is not None:
            merged: int = about.get("spatial_merge_size", "merge_size", default=1)
            return int(grid[0].prod().item() // merged**2)
        made = output_of(_Features(about.model, method), map_tensors(partial(typed, model=about.model), inputs))
        return sum(vector.numel() // vector.shape[-1] for vector in tensors_of(made))

    def make(size: int) -> Batch:
        if not places():
            return {}
        batch = _made(about, ["input_ids", name], size)
        ids = torch.cat([torch.full((size, places()), token), batch["input_ids"]], 1)
        batch |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return {**batch, **{kind: (ids == token).long() for kind in _KINDS if kind in about.accepted}}

    return make


class _Features(nn.Module):
    """The part of a model that makes vectors of an image or a sound."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, **inputs: Any) -> Any:
        found = getattr(self.model, self.method)(**inputs)
        return getattr(found, "pooler_output", found)
