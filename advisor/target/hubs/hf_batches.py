"""Made-up batches for Hugging Face models: shapes from the configuration, inputs by the forward pass's signature."""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from advisor.errors import TargetError
from advisor.records import TargetSpec
from advisor.step.batch import map_tensors
from advisor.target.guess import generator_for, noise, typed, whole_numbers
from advisor.target.hubs.contract import Samples, check_input
from advisor.target.hubs.hf_classes import labels_of, said_by, special_ids, text_of, token_counts
from advisor.target.hubs.hf_inputs import (
    BESIDE,
    READ_INSIDE,
    SOUND_LENGTH,
    STATES,
    USUAL_SIDE,
    Make,
    bins_first,
    changed,
    flattened,
    future,
    images,
    in_pairs,
    in_rows,
    of_any_frames,
    of_bins,
    one_each,
    other_states,
    past,
    places_of,
    states,
    together_of,
    videos,
    with_a_channel,
)
from advisor.target.sizing import counted_run, refuses, takes

# Usual length of a text: tokens. Longer ones are possible with --input.
_USUAL_LENGTH = 512
# Lengths for a machine on which the usual one takes too long.
_SHORTER = (128, 32)
_FRAMES = 200  # of a spectrogram whose length is free
_DECODED = 32  # tokens that are decoded from an image or sound
_CHARACTERS = 12
_OBJECTS = 4  # in an image
_NO_LIMIT = 2**20  # positions of a model that counts them without a table
_USUAL_VOCABULARY = 128  # of a model that takes characters without a table of them
_IGNORED = -100  # a label that no loss counts
_TRIED = 2  # samples of a batch by which inputs are chosen
# Inputs whose length may be chosen.
_OF_A_LENGTH = frozenset({"input_ids", "flattened_patches"})
# Labels that a loss matches with what was found in an image, by scipy.
_MATCHED = frozenset({"boxes", "masks"})

_ADAMW = partial(torch.optim.AdamW, lr=1e-5)

MakeLabels = Callable[[int, dict[str, Any]], dict[str, Any]]


def hf_samples(model: Any, spec: TargetSpec, *, train: bool) -> Samples:
    """Batches of keyword arguments for a ``PreTrainedModel``. Raises TargetError where its inputs are unknown."""
    _give_a_start(model.config)
    _give_an_end(model)
    longest = ModelInputs(model, spec, _longest(model))
    if spec.input_shape is not None:
        return _samples(longest, train=train)
    of_a_length = not _only_length(text_of(model.config)) and not _OF_A_LENGTH.isdisjoint(longest.inputs(1))
    shorter = [replace(longest, length=length) for length in _SHORTER if length < longest.length and of_a_length]
    if longest.sees_larger_than(USUAL_SIDE):
        smaller = replace(shorter[-1] if shorter else longest, side=USUAL_SIDE)
        shorter += [smaller] if "pixel_values" in smaller.inputs(1) and not smaller.refuses(smaller.inputs) else []
    labelled = not train or (shorter[-1] if shorter else longest).fit_labels()
    first, *others = (_samples(replace(about, labelled=labelled), train=train) for about in (longest, *shorter))
    return replace(first, shorter=tuple(others))


def prompts(model: Any, spec: TargetSpec, length: int) -> Make:
    """A function that makes a batch of a number of prompts, as ``generate`` takes them."""
    _give_a_start(model.config)
    return ModelInputs(model, spec, length).inputs


def longest_text(model: Any) -> int:
    """The number of positions that the configuration gives a model; a usual number where it names none."""
    config = text_of(model.config)
    named = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    return next((positions for positions in named if isinstance(positions, int) and positions > 1), _NO_LIMIT)


def _give_a_start(config: Any) -> None:
    """Say with which token a decoder starts and pads; configurations that no checkpoint came with leave it open."""
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(text_of(config), "pad_token_id", None) or 0
    if config.is_encoder_decoder and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0


def _give_an_end(model: Any) -> None:
    """Say which token is for padding: classes of a text are read before the first of them."""
    texts = "input_ids" in inspect.signature(model.forward).parameters
    classes = labels_of(model) == "class" or type(model).__name__.endswith("ForSequenceClassification")
    if texts and classes and getattr(text_of(model.config), "pad_token_id", None) is None:
        text_of(model.config).pad_token_id = model.config.pad_token_id = 0


def _samples(about: ModelInputs, *, train: bool) -> Samples:
    inputs, labels = about.inputs, about.labels() if train else None

    def make(size: int) -> dict[str, Any]:
        return about.batch(inputs, size, labels)

    trains = labels is not None or (train and _has_a_loss(about.model, make))
    return Samples(make, trains=trains, optimizer=_ADAMW, notes=about.notes(train=train))


def _has_a_loss(model: Any, make: Make) -> bool:
    """Whether a model computes a loss without labels, as masked autoencoders do."""
    counted = counted_run(model, make(_TRIED))
    loss = getattr(counted[0], "loss", None) if counted else None
    return isinstance(loss, torch.Tensor) and loss.numel() == 1


def _only_length(config: Any) -> int:
    """The length of each text of a model whose positions are in a grid; 0 for others."""
    grid = getattr(config, "axial_pos_shape", None)
    return math.prod(grid) if grid and getattr(config, "axial_pos_embds", True) else 0


def _longest(model: Any) -> int:
    """The usual length of a text, or as many positions as the model has; the only one where it takes no other."""
    config = text_of(model.config)
    if only := _only_length(config):
        return only
    named = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    tables = (
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and "position" in name and "vision" not in name
    )
    # A table of 512 whose first rows are for padding has fewer.
    return min([_USUAL_LENGTH, *(n for n in (*named, *tables) if isinstance(n, int) and n > 1)])


@dataclass(frozen=True)
class ModelInputs:
    """Makes a model's inputs, from its configuration and signature.

    ``side``: of its images, unless its own. ``labelled``: whether it gets the labels of its head's kind.
    """

    model: Any
    spec: TargetSpec
    length: int
    side: int | None = None
    labelled: bool = True
    known_inside: list[tuple[str, bool]] = field(default_factory=list)  # ways that were tried, shared by all lengths

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def text(self) -> Any:
        return text_of(self.config)

    @property
    def accepted(self) -> Any:
        """The parameters of the forward pass, by name."""
        return inspect.signature(self.model.forward).parameters

    @property
    def shape(self) -> tuple[int, ...] | None:
        """One sample's shape as ``--input`` gives it."""
        return self.spec.input_shape[1:] if self.spec.input_shape else None

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these attributes in the configuration, or in its parts; else ``default``."""
        return next((value for name in names if (value := said_by(self.config, name)) is not None), default)

    def notes(self, *, train: bool) -> tuple[str, ...]:
        """The assumptions made about the inputs, in sentences; and the reason where it cannot be trained."""
        shapes = {name: list(value.shape[1:]) for name, value in self.inputs(1).items() if hasattr(value, "shape")}
        told = "random inputs: " + ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        if train and labels_of(self.model) in _MATCHED and not has_scipy():
            return told, f"to train {type(self.model).__name__} needs scipy, by which its loss matches objects"
        if train and not self.labelled:
            return told, f"labels that fit the loss of {type(self.model).__name__} are not known"
        return (told,)

    @cached_property
    def inputs(self) -> Make:
        """Makes the inputs of a batch: the first of the alternatives that the model does not refuse."""
        if inside := self._inside_a_text():
            return inside
        alternatives = self._alternatives()
        whole = [make for make in alternatives if not self._missing(make)]
        if not whole:
            raise self._unknown(self._missing(alternatives[-1]))
        if len(whole) == 1 or self.shape:
            return whole[0]
        tries = ((make, labelled) for labelled in (True, False) for make in whole)
        return next((m for m, labelled in tries if takes(self.model, self._tried(m, labelled=labelled))), whole[0])

    def fit_labels(self) -> bool:
        """Whether the labels fit the model's head, as far as a forward pass without them runs."""
        if self.labels() is None or takes(self.model, self._tried(self.inputs)):
            return True
        return not takes(self.model, self._tried(self.inputs, labelled=False))

    def _missing(self, make: Make) -> list[str]:
        """The names of inputs that the model requires and that are not made."""
        made = make(1)
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = [name for name, parameter in self.accepted.items() if parameter.kind in kinds]
        return [name for name in named if self.requires(name) and name not in made]

    def _unknown(self, named: list[str]) -> TargetError:
        return TargetError(
            f"the inputs of {type(self.model).__name__} are not known: it is called with {', '.join(named[:6])}.",
            "Return (model, batch) from a build() of your own, with a dict of these as the batch.",
        )

    def sees_larger_than(self, side: int) -> bool:
        """Whether the batches have images, each one alone, of more pixels a side."""
        images = self.inputs(1).get("pixel_values")
        return images is not None and images.dim() == 4 and images.shape[-1] > side

    def refuses(self, make: Make) -> bool:
        """Whether the model cannot take these inputs, with labels where it takes some, as far as shapes show."""
        return refuses(self.model, self._tried(make))

    def _tried(self, make: Make, *, labelled: bool = True) -> dict[str, Any]:
        return self.batch(make, _TRIED, self.labels() if labelled else None)

    def batch(self, make: Make, size: int, labels: MakeLabels | None) -> dict[str, Any]:
        """Inputs in the model's own floating-point type, with their labels or what a decoder starts from."""
        batch = make(size)
        batch.update(labels(size, batch) if labels else self.decoder(size, batch))
        made: dict[str, Any] = map_tensors(lambda tensor: typed(tensor, self.model), batch)
        return made

    def _alternatives(self) -> list[Make]:
        """Makers of inputs: the main ones, all together, sounds and spectrograms the other way; then with the rest."""
        named = [name for name in _MAKERS if name in self.accepted and (name not in STATES or self.requires(name))]
        makers = {name: partial(_MAKERS[name], self) for name in named}
        main = self.model.main_input_name
        main = main if main in makers else next((name for name in makers if self.requires(name)), "")
        if not main:
            return [self._dummies()]
        together = together_of(list(makers.values())) if len(makers) > 1 else None
        if together and self._compares():
            ways = [together]
        else:
            sounds: list[Make | None] = [makers[main], together] if main == "input_values" else []
            several = changed(together, one_each) if together and "image_attention_mask" in self.accepted else None
            ways = [makers[main], *filter(None, (together, *map(with_a_channel, filter(None, sounds)), several))]
        if "input_features" in makers:
            ways += [bins_first(make) for make in ways]
        if main == "input_features":
            ways += [changed(makers[main], of_bins)]
        if main == "input_ids" and (codebooks := self.get("num_codebooks")):
            ways.append(changed(makers[main], partial(in_rows, codebooks)))
        if main in STATES:
            ways += other_states(main, self)
        if main == "pixel_values":
            ways += [changed(makers[main], of_any_frames), changed(makers[main], in_pairs)]
        wholes = [self._with_rest(make, all_of_it=True) for make in ways]
        more = [whole for make, whole in zip(ways, wholes, strict=True) if whole(1).keys() != make(1).keys()]
        return [*(self._with_rest(make, all_of_it=False) for make in ways), *more]

    def _inside_a_text(self) -> Make | None:
        """Makes texts with images or sounds inside, for a model that reads such; None for others."""
        names = [name for name in READ_INSIDE if {name, "input_ids"} <= self.accepted.keys()]
        for name, turned in self.known_inside or [(name, turned) for name in names for turned in (False, True)]:
            if places := places_of(self.model, self, name):
                turn = (lambda make: changed(make, one_each)) if name == "pixel_values" else bins_first
                plain = partial(_MAKERS[name], self)
                make = places.filled(self._texts, turn(plain) if turned else plain)
                if make and (self.known_inside or takes(self.model, self._tried(make))):
                    self.known_inside[:] = [(name, turned)]
                    return make
        return None

    def requires(self, name: str) -> bool:
        """Whether the forward pass has a parameter of this name without a default."""
        return name in self.accepted and self.accepted[name].default is inspect.Parameter.empty

    def _with_rest(self, make: Make, *, all_of_it: bool) -> Make:
        """Inputs with the masks and boxes that a model requires beside them; with ``all_of_it`` those it may take."""

        def made(size: int) -> dict[str, Any]:
            batch = make(size)
            for name, kind in BESIDE.items():
                if name in self.accepted and name not in batch and (all_of_it or self.requires(name)):
                    batch.update(kind(name, batch))
            return batch

        return made

    def _compares(self) -> bool:
        """Whether a model takes pairs of a text and an image or sound, which it tells from other pairs."""
        return "return_loss" in self.accepted and "input_ids" in self.accepted

    @property
    def vocabulary(self) -> int:
        """The number of tokens that there are."""
        said = said_by(self.text, "vocab_size")
        said = said if isinstance(said, int) else _USUAL_VOCABULARY
        tables = (module.num_embeddings for module in self.model.modules() if isinstance(module, nn.Embedding))
        # The part that a configuration says it of may be left out of the model.
        return min(said, max(tables, default=said), *token_counts(self.model))

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
        """Raise TargetError where ``--input`` gives a text that the model cannot take."""
        longest = longest_text(self.model)
        if self.shape and "pixel_values" not in self.accepted:
            check_input(self.spec, 3 if len(shape) > 1 and labels_of(self.model) == "choice" else 2, "8x128")
        size = self.spec.input_shape[0] if self.spec.input_shape else 1
        if shape[-1] > longest:
            raise TargetError(
                f"a text of {shape[-1]} tokens is too long for {type(self.model).__name__}, which takes {longest}.",
                f"Give a shorter one, as in --input {size}x{longest}.",
            )

    @property
    def decoding(self) -> Any:
        """The part of the configuration that is about decoded tokens."""
        return self.config.get_text_config(decoder=True)

    def _tokens(self, *shape: int, below: int | None = None) -> torch.Tensor:
        """Token ids without special ones, such as padding, to which models react."""
        special = [getattr(self.text, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")]
        low = [i for i in special if isinstance(i, int) and 0 <= i < 10]
        tokens = whole_numbers(below or self.vocabulary, *shape, at_least=max(low, default=-1) + 1)
        for special_id in (*special, *special_ids(self.config)):
            if isinstance(special_id, int):
                tokens[tokens == special_id] = max(low, default=-1) + 1
        return tokens

    def _series(self, size: int) -> dict[str, Any]:
        return {name: values for name, values in past(self.config, size, self.shape).items() if self._takes(name)}

    def _takes(self, name: str) -> bool:
        """Whether a series' part is needed: the values, what has no default, and features that are there."""
        return name == "past_values" or self.requires(name)

    def _sound(self, size: int) -> dict[str, Any]:
        bins, longest, channels = self.get("num_mel_bins"), self.get("max_length"), self.get("audio_channels")
        if self.shape:
            shape = self.shape
        elif bins and longest and not self.get("conv_dim"):
            shape = (longest, bins)
        else:
            shape = (channels, SOUND_LENGTH) if channels else (SOUND_LENGTH,)
        return {"input_values": noise(size, *shape)}

    def _spectrograms(self, size: int) -> dict[str, Any]:
        bins, positions = self.get("num_mel_bins"), self.get("max_source_positions")
        free = self.get("feature_projection_input_dim", "input_feat_per_channel", "input_channels", "input_dim")
        side = self.get("spec_size")  # of the image that a spectrogram is folded into
        if self.shape:
            shape = self.shape
        elif bins and side:
            shape = (4 if self.get("enable_fusion") else 1, side * side // bins, bins)
        elif bins and positions and not free:
            shape = (bins, 2 * positions)  # two convolutions, the second with a stride of two
        else:
            shape = (_FRAMES, free or bins or 80)
        longer = {"is_longer": torch.zeros(size, 1, dtype=torch.bool)} if "is_longer" in self.accepted else {}
        return {"input_features": noise(size, *shape), **longer}

    def _dummies(self) -> Make:
        dummies = {name: value for name, value in (self.model.dummy_inputs or {}).items() if name in self.accepted}
        if not dummies:
            raise self._unknown(list(self.accepted))
        return lambda size: {
            name: value[:1].expand(size, *value.shape[1:]).clone() if isinstance(value, torch.Tensor) else value
            for name, value in dummies.items()
        }

    def decoder(self, size: int, batch: dict[str, Any]) -> dict[str, Any]:
        """The decoder's inputs where there are no labels that it could start from."""
        if not self.config.is_encoder_decoder or "decoder_input_ids" not in self.accepted:
            return {}
        part = None if self.decoding is self.config else self.decoding
        rows, channels = size * (getattr(part, "num_codebooks", None) or 1), getattr(part, "num_channels", None)
        shape = (rows, self._decoded(batch), *((channels,) if channels else ()))  # of a sound, several side by side
        tokens = self._tokens(*shape, below=said_by(self.decoding, "vocab_size"))
        tokens[:, 0] = self.get("decoder_start_token_id", default=0)
        return {"decoder_input_ids": tokens}

    def _decoded(self, batch: dict[str, Any]) -> int:
        length = batch["input_ids"].shape[-1] if "input_ids" in batch else _DECODED
        return int(min(length, self.get("max_target_positions", default=length)))

    def labels(self) -> MakeLabels | None:
        """Makes labels for the model's head; None where their form is not known."""
        makers: dict[str, MakeLabels] = {
            "tokens": lambda size, batch: {"labels": self._next_tokens(size, batch)},
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
            "boxes": lambda size, batch: {"labels": [self._boxes() for _ in range(size)]},
            "masks": lambda size, batch: self._masks(size, batch["pixel_values"].shape[-2:]),
            "future": lambda size, batch: {n: v for n, v in future(self.config, batch).items() if n in self.accepted},
        }
        if not self.labelled:
            return None
        kind = "pairs" if self._compares() else labels_of(self.model)
        if kind == "decoded tokens" and not self.config.is_encoder_decoder:
            kind = "tokens"
        known = makers.get(kind)
        if kind in _MATCHED and not has_scipy():
            return None
        named = {"span": "start_positions", "pairs": "return_loss", "masks": "mask_labels", "future": "future_values"}
        wanted = named.get(kind, "labels")
        return known if wanted in self.accepted else None

    def _boxes(self) -> dict[str, torch.Tensor]:
        """The objects of an image: their classes, and their boxes' centres and sizes as shares of the image."""
        classes = whole_numbers(self.config.num_labels, _OBJECTS)
        return {
            "class_labels": classes,
            "boxes": torch.rand(_OBJECTS, 4, generator=generator_for(_OBJECTS, 4)) / 4 + 0.25,
        }

    def _masks(self, size: int, shape: tuple[int, ...]) -> dict[str, Any]:
        """The objects of each image: their classes and masks."""
        masks = whole_numbers(2, _OBJECTS, *shape).float()
        classes = whole_numbers(self.config.num_labels, _OBJECTS)
        return {
            "mask_labels": [masks.clone() for _ in range(size)],
            "class_labels": [classes.clone() for _ in range(size)],
        }

    def _next_tokens(self, size: int, batch: dict[str, Any]) -> torch.Tensor:
        """The text itself; of a model that reads images or sound, one that it decodes."""
        if "input_ids" not in batch:
            return self._tokens(size, self._decoded(batch))
        ids: torch.Tensor = batch["input_ids"]
        special = torch.tensor([*special_ids(self.config)], dtype=torch.long)  # as the places of an image
        return ids.masked_fill(torch.isin(ids, special), _IGNORED)

    def _classes(self, *shape: int) -> torch.Tensor:
        if getattr(self.config, "problem_type", None) == "regression" or self.config.num_labels == 1:
            return noise(*shape)
        return whole_numbers(self.config.num_labels, *shape)


_MAKERS: dict[str, Callable[[Any, int], dict[str, Any]]] = {
    "input_ids": ModelInputs._texts,
    "pixel_values": images,
    "pixel_values_videos": videos,
    "input_values": ModelInputs._sound,
    "input_features": ModelInputs._spectrograms,
    "flattened_patches": flattened,
    "past_values": ModelInputs._series,
    **{name: partial(states, name) for name in STATES},
}
#: Inputs that can be made for a model by its configuration.
INPUTS = frozenset(_MAKERS)


def has_scipy() -> bool:
    """Whether scipy can be imported."""
    return importlib.util.find_spec("scipy") is not None
