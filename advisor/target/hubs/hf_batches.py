"""Made-up batches for Hugging Face models: shapes from the configuration, inputs by the forward pass's signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from advisor.errors import TargetError
from advisor.records import TargetSpec
from advisor.target.hubs.contract import Samples, check_input
from advisor.target.hubs.hf_classes import labels_of
from advisor.target.made_up import noise, typed, whole_numbers

# Usual length of a text: tokens. Longer ones are possible with --input.
_USUAL_LENGTH = 512
# Lengths for a machine on which the usual one takes too long.
_SHORTER = (128, 32)
_SOUND_LENGTH = 16000  # samples: one second at the usual rate
_FRAMES = 200  # of a spectrogram whose length is free
_DECODED = 32  # tokens that are decoded from an image or sound
_CHARACTERS = 12
_USUAL_SIDE = 224
_NO_LIMIT = 2**20  # positions of a model that counts them without a table

Make = Callable[[int], dict[str, Any]]


def hf_samples(model: Any, spec: TargetSpec, *, train: bool) -> Samples:
    """Batches of keyword arguments for a ``PreTrainedModel``. Raises TargetError where its inputs are unknown."""
    _give_a_start(model.config)
    longest = _longest(model)
    texts = [_samples(model, spec, length, train=train) for length in (longest, *(n for n in _SHORTER if n < longest))]
    first, *shorter = texts
    reads = "input_ids" in first.make(1) and spec.input_shape is None
    return replace(first, shorter=tuple(shorter) if reads else ())


def prompts(model: Any, spec: TargetSpec, length: int) -> Make:
    """A function that makes a batch of so many prompts, as ``generate`` takes them."""
    _give_a_start(model.config)
    return _ModelInputs(model, spec, length).inputs()


def longest_text(model: Any) -> int:
    """As many positions as the configuration gives a model; a usual number where it names none."""
    config = model.config.get_text_config()
    named = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    return next((positions for positions in named if isinstance(positions, int) and positions > 1), _NO_LIMIT)


def _give_a_start(config: Any) -> None:
    """Say with which token a decoder starts; configurations that no checkpoint came with leave it open."""
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config.get_text_config(), "pad_token_id", None) or 0


def _samples(model: Any, spec: TargetSpec, length: int, *, train: bool) -> Samples:
    about = _ModelInputs(model, spec, length)
    inputs = about.inputs()
    labels = about.labels() if train else None

    def make(size: int) -> dict[str, Any]:
        batch = inputs(size)
        batch.update(labels(size, batch) if labels else about.decoder(size, batch))
        return {
            name: typed(value, model) if isinstance(value, torch.Tensor) else value for name, value in batch.items()
        }

    return Samples(make, trains=labels is not None, optimizer=_adamw, notes=about.notes())


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-5)


def _longest(model: Any) -> int:
    """The usual length of a text, or as many positions as the model has."""
    config = model.config.get_text_config()
    named = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    tables = (
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and "position" in name
    )
    # A table of 512 whose first rows are for padding has fewer.
    return min([_USUAL_LENGTH, *(n for n in (*named, *tables) if isinstance(n, int) and n > 1)])


@dataclass(frozen=True)
class _ModelInputs:
    """Makes a model's inputs, from its configuration and signature."""

    model: Any
    spec: TargetSpec
    length: int

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def text(self) -> Any:
        return self.config.get_text_config()

    @property
    def accepted(self) -> Any:
        return inspect.signature(self.model.forward).parameters

    @property
    def shape(self) -> tuple[int, ...] | None:
        """One sample's shape as ``--input`` gives it."""
        return self.spec.input_shape[1:] if self.spec.input_shape else None

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these attributes in the configuration, or in its part for images; else ``default``."""
        for config in (self.config, getattr(self.config, "vision_config", None)):
            for name in names:
                if (value := getattr(config, name, None)) is not None:
                    return value
        return default

    def notes(self) -> tuple[str, ...]:
        """The assumptions made about the inputs, in sentences."""
        shapes = {name: list(value.shape[1:]) for name, value in self.inputs()(1).items() if hasattr(value, "shape")}
        return ("random inputs: " + ", ".join(f"{name} {shape}" for name, shape in shapes.items()),)

    def inputs(self) -> Make:
        """Makes the inputs of a batch."""
        main = self.model.main_input_name
        makers = {
            "input_ids": self._texts,
            "pixel_values": self._images,
            "input_values": self._sound,
            "input_features": self._spectrograms,
        }
        if main not in makers or main not in self.accepted:
            return self._dummies()
        make = makers[main]
        if main == "input_ids" and "pixel_values" in self.accepted and labels_of(self.model) == "pairs":
            return lambda size: {**self._texts(size), **self._images(size)}
        return make

    def _texts(self, size: int) -> dict[str, Any]:
        shape = self.shape or (self.length,)
        self._check_text(shape)
        if labels_of(self.model) == "choice":
            shape = (2, *shape[-1:])
        ids = self._tokens(size, *shape)
        return {
            "input_ids": ids,
            **({"attention_mask": torch.ones_like(ids)} if "attention_mask" in self.accepted else {}),
        }

    def _check_text(self, shape: tuple[int, ...]) -> None:
        """Raise TargetError for what ``--input`` says of a text that the model cannot take."""
        longest = longest_text(self.model)
        if self.shape and "pixel_values" not in self.accepted:
            check_input(self.spec, 3 if len(shape) > 1 and labels_of(self.model) == "choice" else 2, "8x128")
        size = self.spec.input_shape[0] if self.spec.input_shape else 1
        if shape[-1] > longest:
            raise TargetError(
                f"a text of {shape[-1]} tokens is too long for {type(self.model).__name__}, which takes {longest}.",
                f"Give a shorter one, as in --input {size}x{longest}.",
            )

    def _tokens(self, *shape: int) -> torch.Tensor:
        """Token ids without special ones, such as padding, to which models react."""
        special = [getattr(self.text, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")]
        low = [i for i in special if isinstance(i, int) and 0 <= i < 10]
        tokens = whole_numbers(self.text.vocab_size, *shape, at_least=max(low, default=-1) + 1)
        for special_id in (*special, getattr(self.config, "image_token_id", None)):
            if isinstance(special_id, int):
                tokens[tokens == special_id] = max(low, default=-1) + 1
        return tokens

    def _images(self, size: int) -> dict[str, Any]:
        shape = self.shape if self.shape and len(self.shape) > 1 else None
        if shape is None:
            side = self.get("image_size", default=_USUAL_SIDE)
            height, width = (side[0], side[-1]) if isinstance(side, list | tuple) else (side, side)
            shape = (self.get("num_channels", default=3), height, width)
            frames = self.get("num_frames")
            shape = (frames, *shape) if frames else shape
        return {"pixel_values": noise(size, *shape)}

    def _sound(self, size: int) -> dict[str, Any]:
        bins, longest, channels = self.get("num_mel_bins"), self.get("max_length"), self.get("audio_channels")
        if self.shape:
            shape = self.shape
        elif bins and longest and not self.get("conv_dim"):
            shape = (longest, bins)
        else:
            shape = (channels, _SOUND_LENGTH) if channels else (_SOUND_LENGTH,)
        return {"input_values": noise(size, *shape)}

    def _spectrograms(self, size: int) -> dict[str, Any]:
        bins, positions = self.get("num_mel_bins"), self.get("max_source_positions")
        free = self.get("feature_projection_input_dim", "input_feat_per_channel", "input_channels")
        if self.shape:
            shape = self.shape
        elif bins and positions and not free:
            shape = (bins, 2 * positions)  # two convolutions, the second with a stride of two
        else:
            shape = (_FRAMES, free or bins or 80)
        return {"input_features": noise(size, *shape)}

    def _dummies(self) -> Make:
        dummies = {name: value for name, value in (self.model.dummy_inputs or {}).items() if name in self.accepted}
        if not dummies:
            raise TargetError(
                f"the inputs of {type(self.model).__name__} are not known: it is called with "
                f"{', '.join(list(self.accepted)[:6])}.",
                "Return (model, batch) from a build() of your own, with a dict of these as the batch.",
            )
        return lambda size: {
            name: value[:1].expand(size, *value.shape[1:]).clone() if isinstance(value, torch.Tensor) else value
            for name, value in dummies.items()
        }

    def decoder(self, size: int, batch: dict[str, Any]) -> dict[str, Any]:
        """The decoder's inputs where there are no labels that it could start from."""
        if not self.config.is_encoder_decoder or "decoder_input_ids" not in self.accepted:
            return {}
        tokens = self._tokens(size, self._decoded(batch))
        start = self.get("decoder_start_token_id", default=0)
        tokens[:, 0] = start
        return {"decoder_input_ids": tokens}

    def _decoded(self, batch: dict[str, Any]) -> int:
        length = batch["input_ids"].shape[-1] if "input_ids" in batch else _DECODED
        return int(min(length, self.get("max_target_positions", default=length)))

    def labels(self) -> Callable[[int, dict[str, Any]], dict[str, Any]] | None:
        """Makes what the head is trained on, None where nobody knows."""
        makers = {
            "tokens": lambda size, batch: {"labels": batch["input_ids"].clone()},
            "decoded tokens": lambda size, batch: {"labels": self._tokens(size, self._decoded(batch))},
            "characters": lambda size, batch: {"labels": self._tokens(size, _CHARACTERS)},
            "class": lambda size, batch: {"labels": self._classes(size)},
            "token classes": lambda size, batch: {"labels": self._classes(*batch["input_ids"].shape)},
            "choice": lambda size, batch: {"labels": whole_numbers(2, size)},
            "pixels": lambda size, batch: {"labels": self._classes(size, *batch["pixel_values"].shape[-2:])},
            "span": lambda size, batch: {
                "start_positions": whole_numbers(self.length, size),
                "end_positions": whole_numbers(self.length, size),
            },
            "pairs": lambda size, batch: {"return_loss": True},
        }
        kind = labels_of(self.model)
        known = makers.get(kind)
        wanted = {"span": "start_positions", "pairs": "return_loss"}.get(kind, "labels")
        return known if wanted in self.accepted else None

    def _classes(self, *shape: int) -> torch.Tensor:
        if getattr(self.config, "problem_type", None) == "regression" or self.config.num_labels == 1:
            return noise(*shape)
        if (
            "input_ids" in self.accepted and getattr(self.text, "pad_token_id", None) is None
        ):  # classes of decoders look for the end of a text by it
            self.text.pad_token_id = self.config.pad_token_id = 0
        return whole_numbers(self.config.num_labels, *shape)
