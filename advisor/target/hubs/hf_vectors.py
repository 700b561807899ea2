"""Made-up rows of vectors for Hugging Face models: what a part takes from the part before it, and time series."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from advisor.target.guess import noise, whole_numbers
from advisor.target.hubs.hf_images import USUAL_SIDE, About, grid_of, patches_of_a_grid

_POSITIONS = 16  # vectors of one sample
_USUAL_WIDTH = 80  # of a vector: the usual number of bins of a spectrogram
_SOUND_LENGTH = 16000  # samples: one second at the usual rate

#: The names of such inputs, each with the configuration's names of its vectors' width.
STATES = {
    "hidden_states": ("hidden_size", "d_model"),
    "inputs_embeds": ("hidden_size", "d_model"),
    "latents": ("hidden_size",),
    "spectrogram": ("model_in_dim", "num_mel_bins"),
}
_USUAL_STEPS = 512  # of a model that takes a series of any length
_USUAL_HORIZON = 24


def states(name: str, about: About, size: int) -> dict[str, Any]:
    """A vector for each position, or the patches of a grid."""
    if grid := grid_of(about):
        return patches_of_a_grid(about, size, name, grid)
    return {name: noise(size, *(about.shape or (_POSITIONS, about.get(*STATES[name], default=_USUAL_WIDTH))))}


def other_states(name: str, about: About) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Makers of what a first part takes under the same name: vectors of another width, an image or a sound."""
    width = about.get("input_dim", "in_channels", "num_channels", default=_USUAL_WIDTH)
    own = about.get(*STATES[name], default=_USUAL_WIDTH)
    for shape in ((_POSITIONS, width), (own, _POSITIONS), (3, USUAL_SIDE, USUAL_SIDE), (1, _SOUND_LENGTH)):
        yield partial(_of_shape, name, shape)


def _of_shape(name: str, shape: tuple[int, ...], size: int) -> dict[str, Any]:
    return {name: noise(size, *shape)}


def past(config: Any, size: int, shape: tuple[int, ...] | None) -> dict[str, torch.Tensor]:
    """All that a model may be given of the past. ``shape``: of one series, as ``--input`` gives it."""
    own = shape or (_steps(config), *_channels(config))
    return {
        "past_values": noise(size, *own),
        "past_observed_mask": torch.ones(size, *own),
        "past_values_padding": torch.zeros(size, own[0], dtype=torch.long),
        "past_time_features": noise(size, own[0], _count(config, "num_time_features")),
        "static_real_features": noise(size, _count(config, "num_static_real_features")),
        "static_categorical_features": _categories(config, size),
        "freq": torch.zeros(size, 1, dtype=torch.long),
    }


def future(config: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values that a model is trained to forecast, in as many channels as it forecasts."""
    size, channels = batch["past_values"].shape[0], batch["past_values"].shape[2:]
    horizon = _count(config, "prediction_length") or _count(config, "horizon_length") or _USUAL_HORIZON
    return {
        "future_values": noise(size, horizon, *channels),
        "future_observed_mask": torch.ones(size, horizon, *channels),
        "future_time_features": noise(size, horizon, _count(config, "num_time_features")),
    }


def _steps(config: Any) -> int:
    """The steps of the past: the context, and before it the longest lag that the model looks back from its start."""
    lags: list[int] = getattr(config, "lags_sequence", None) or [0]
    return min(_count(config, "context_length") or _USUAL_STEPS, _USUAL_STEPS) + max(lags)


def _channels(config: Any) -> tuple[int, ...]:
    """The dimension of several series side by side; none for a model of a single one."""
    if channels := _count(config, "num_input_channels"):
        return (channels,)
    several = _count(config, "input_size")
    return (several,) if several > 1 else ()


def _categories(config: Any, size: int) -> torch.Tensor:
    kinds = getattr(config, "cardinality", None) or [1]
    return whole_numbers(max(1, min(kinds)), size, _count(config, "num_static_categorical_features"))


def _count(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else 0
