"""Made-up inputs of parts of Hugging Face models: what each takes from the part before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from advisor.target.guess import noise
from advisor.target.hubs.hf_images import USUAL_SIDE, About, grid_of, patches_of_a_grid

_POSITIONS = 16  # vectors of one sample
_USUAL_WIDTH = 80  # of a vector: the usual number of bins of a spectrogram
_SOUND_LENGTH = 16000  # samples: one second at the usual rate

#: The names of such inputs, each with the configuration's names of its vectors' width.
STATES = {
    "hidden_states": ("hidden_size", "d_model"),
    "inputs_embeds": ("hidden_size", "d_model"),
    "spectrogram": ("model_in_dim", "num_mel_bins"),
}


def states(name: str, about: About, size: int) -> dict[str, Any]:
    """A vector for each position, or the patches of a grid."""
    if grid := grid_of(about):
        return patches_of_a_grid(about, size, name, grid)
    return {name: noise(size, *(about.shape or (_POSITIONS, about.get(*STATES[name], default=_USUAL_WIDTH))))}


def other_states(name: str, about: About) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Makers of what a first part takes under the same name: vectors of another width, an image or a sound."""
    width = about.get("input_dim", "in_channels", "num_channels", default=_USUAL_WIDTH)
    for shape in ((_POSITIONS, width), (3, USUAL_SIDE, USUAL_SIDE), (1, _SOUND_LENGTH)):
        yield partial(_of_shape, name, shape)


def _of_shape(name: str, shape: tuple[int, ...], size: int) -> dict[str, Any]:
    return {name: noise(size, *shape)}
