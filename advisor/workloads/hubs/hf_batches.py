"""Made-up batches for Hugging Face models: the inputs that a forward pass takes, and labels of a model's head.

Shapes come from the configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from advisor.errors import TargetError
from advisor.records import TargetSpec
from advisor.step.batch import map_tensors
from advisor.workloads.guess import counted_run, noise, runs_on_gpu, typed, whole_numbers
from advisor.workloads.hubs.contract import Samples, check_input
from advisor.workloads.hubs.hf_classes import labels_of, parts_of, text_of

# Length of a text, and of one on a CPU: tokens. Longer ones are possible with --input.
_LENGTH, _SHORT = 512, 64
_DECODED = 32  # tokens that are decoded from an image or sound
_CHARACTERS = 12
_NO_LIMIT = 2**20  # positions of a model that counts them without a table
_COUNTED = 2  # samples of a batch that shows whether a model computes a loss by itself

_ADAMW = partial(torch.optim.AdamW, lr=1e-5)
_USUAL_SIDE = 224
_FRAMES_HEARD = 200  # of a spectrogram whose length is free
_SOUND_LENGTH = 16000  # samples: one second at the usual rate
_BINS = 80  # of a spectrogram, by the usual number; the other one follows
_USUAL_VOCABULARY = 128  # of a model that takes characters without a table of them
_USUAL_STEPS = 512  # of a model that takes a series of any length
_USUAL_HORIZON = 24
# The parameters that labels of these kinds are given as; those of others are called labels.
_GIVEN_AS = {"span": "start_positions", "pairs": "return_loss", "future": "future_values"}

# Inputs that can be made up. The first that a model takes is its main one, unless it names another.
_INPUTS = ("input_ids", "pixel_values", "input_values", "input_features", "past_values")

Batch = dict[str, Any]
Make = Callable[[int], Batch]


def hf_samples(model: Any, spec: TargetSpec, *, train: bool) -> Samples:
    """Batches of keyword arguments for a ``PreTrainedModel``. Raises TargetError where its inputs are unknown."""
    _complete(model)
    given, longest = spec.input_shape, longest_text(model)
    about = ModelInputs(model, spec, min(longest, _LENGTH if runs_on_gpu(spec) else _SHORT))
    if given is not None and model.main_input_name == "input_ids":
        if "pixel_values" not in about.accepted:
            check_input(spec, 2, "8x128")
        if given[-1] > longest:
            raise TargetError(
                f"a text of {given[-1]} tokens is too long for {type(model).__name__}, which takes {longest}.",
                f"Give a shorter one, as in --input {given[0]}x{longest}.",
            )
    labels = _kind_of_labels(about) if train else ""
    make = partial(_batch, about, _maker_of_inputs(about), labels)
    trains = bool(labels)
    if train and not trains:  # some compute a loss without labels, as masked autoencoders do
        counted = counted_run(model, make(_COUNTED))
        loss = getattr(counted[0], "loss", None) if counted else None
        trains = isinstance(loss, torch.Tensor) and loss.numel() == 1
    shapes = {name: list(value.shape[1:]) for name, value in make(1).items() if isinstance(value, torch.Tensor)}
    notes = ["random inputs: " + ", ".join(f"{name} {shape}" for name, shape in shapes.items() if "label" not in name)]
    if train and not trains:
        notes.append(f"labels that fit the loss of {type(model).__name__} are not known")
    return Samples(make, trains=trains, optimizer=_ADAMW, notes=tuple(notes))


def prompts(model: Any, spec: TargetSpec, length: int) -> Make:
    """A function that makes a batch of a number of prompts, as ``generate`` takes them."""
    _complete(model)
    return _maker_of_inputs(ModelInputs(model, spec, length))


def longest_text(model: Any) -> int:
    """The number of positions that the configuration gives a model; a usual number where it names none."""
    said = getattr(text_of(model.config), "max_position_embeddings", None)
    return said if isinstance(said, int) and said > 1 else _NO_LIMIT


def _complete(model: Any) -> None:
    """Set the start and padding tokens of a decoder; a configuration without a checkpoint may lack them."""
    config, text = model.config, text_of(model.config)
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(text, "pad_token_id", None) or 0
    classes = labels_of(model) == "class" and model.main_input_name == "input_ids"  # they are read before the padding
    for part in (text, config) if config.is_encoder_decoder or classes else ():
        if getattr(part, "pad_token_id", None) is None:
            part.pad_token_id = 0


class ModelInputs:
    """The facts by which a model's inputs are made.

    ``length`` is that of a text in tokens, ``shape`` one sample's as ``--input`` gives it. ``accepted`` are the
    parameters of the forward pass by name, ``required`` those that it cannot do without. ``compares``: the model
    compares pairs of a text and an image or sound.
    """

    def __init__(self, model: Any, spec: TargetSpec, length: int) -> None:
        self.model, self.config, self.spec, self.length = model, model.config, spec, length
        self.shape = spec.input_shape[1:] if spec.input_shape else None
        self.accepted = inspect.signature(model.forward).parameters
        named = [one for one in self.accepted.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        self.required = [one.name for one in named if one.default is one.empty]
        self.compares = {"return_loss", "input_ids"} <= self.accepted.keys()

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these attributes that the configuration or one of its parts has; else ``default``."""
        said = (getattr(part, name, None) for name in names for part in parts_of(self.config))
        return next((value for value in said if value is not None), default)

    def tokens(self, *shape: int) -> torch.Tensor:
        """Token ids without special ones, such as padding or image tokens, which models treat differently."""
        said = {**vars(self.config), **vars(text_of(self.config))}
        named = [i for name, i in said.items() if name.endswith(("_token_id", "_token_index"))]
        several = (ids if isinstance(ids, list | tuple) else [ids] for ids in named)
        special = [i for ids in several for i in ids if isinstance(i, int)]  # a text may end in one of several
        low = max((i for i in special if 0 <= i < 10), default=-1) + 1
        known = getattr(text_of(self.config), "vocab_size", None)
        tokens = whole_numbers(known if isinstance(known, int) else _USUAL_VOCABULARY, *shape, at_least=low)
        tokens[torch.isin(tokens, torch.tensor(special, dtype=torch.long))] = low
        return tokens


# --- one input --------------------------------------------------------------------------------------------------------


def _shape_of(about: ModelInputs, name: str) -> tuple[int, ...]:
    """The shape of one sample of an input of images, sounds or series, as the configuration says it."""
    bins = about.get("num_mel_bins")
    match name:
        case "pixel_values":  # several as frames, where the model takes them so
            side, frames = about.get("image_size", default=_USUAL_SIDE), about.get("num_frames")
            height, width = (side[0], side[-1]) if isinstance(side, list | tuple) else (side, side)
            return (*((frames,) if frames else ()), about.get("num_channels", default=3), height, width)
        case "input_values":  # sound, with a channel dimension for a codec; or a spectrogram under the same name
            if about.get("conv_dim"):
                return (_SOUND_LENGTH,)
            longest = about.get("max_length")
            return (longest, bins) if bins and longest else (about.get("audio_channels", default=1), _SOUND_LENGTH)
        case "input_features":  # spectrograms of the length that the model takes, where its configuration says one
            free = about.get("feature_projection_input_dim", "input_feat_per_channel", "input_channels", "input_dim")
            positions = about.get("max_source_positions")
            if bins and positions and not free:
                return (bins, 2 * positions)  # two convolutions, the second with a stride of two
            return (_FRAMES_HEARD, free or bins or _BINS)
        case _:  # the past of a time series
            channels = about.get("num_input_channels")
            steps = min(about.get("context_length", default=_USUAL_STEPS), _USUAL_STEPS)
            return (steps, channels) if channels else (steps,)


# --- all inputs of a batch --------------------------------------------------------------------------------------------


def _maker_of_inputs(about: ModelInputs) -> Make:
    """A function that makes a model's inputs: its main one, and what else its forward pass requires or compares.

    Raises TargetError if it needs other inputs.
    """
    accepted, required = about.accepted, about.required
    named = [name for name in _INPUTS if name in accepted]
    main = about.model.main_input_name
    if main not in named:
        main = next((name for name in named if name in required), next(iter(named), ""))
    taken = [name for name in named if about.compares or name == main or name in required]
    make: Make = partial(_made, about, taken)
    if not taken or not make(1).keys() >= set(required):
        called = ", ".join((required or list(accepted))[:6])
        raise TargetError(
            f"the inputs of {type(about.model).__name__} are not known: it is called with {called}.",
            "Return (model, batch) from a build() of your own, with a dict of these as the batch.",
        )
    return make


def _made(about: ModelInputs, names: list[str], size: int) -> Batch:
    """Several inputs in one batch; with a text the places of its words on a page, where the model takes any."""
    batch: Batch = {}
    for name in names:
        if name == "input_ids":
            batch["input_ids"] = ids = about.tokens(size, *(about.shape or (about.length,)))
            if "attention_mask" in about.accepted:
                batch["attention_mask"] = torch.ones_like(ids)
        else:
            given = about.shape if name != "pixel_values" or len(about.shape or ()) > 1 else None  # of the text beside
            batch[name] = noise(size, *(given or _shape_of(about, name)))
    if "bbox" in about.accepted and "input_ids" in batch:  # left, upper, right and lower edge, as shares of the page
        batch["bbox"] = torch.tensor([0.25, 0.25, 0.75, 0.5]).expand(*batch["input_ids"].shape, 4).clone()
    return batch


# --- labels, and what a decoder starts from ---------------------------------------------------------------------------


def _batch(about: ModelInputs, make: Make, labels: str, size: int) -> Batch:
    """Inputs in the model's floating-point type, with labels of a kind or a decoder's start tokens."""
    batch = make(size)
    if labels:
        batch |= _labels(about, labels, size, batch)
    elif about.config.is_encoder_decoder and "decoder_input_ids" in about.accepted:
        tokens = about.tokens(size, _decoded(about, batch))
        tokens[:, 0] = about.get("decoder_start_token_id", default=0)
        batch["decoder_input_ids"] = tokens
    made: Batch = map_tensors(lambda tensor: typed(tensor, about.model), batch)
    return made


def _decoded(about: ModelInputs, batch: Batch) -> int:
    length = batch["input_ids"].shape[-1] if "input_ids" in batch else _DECODED
    return int(min(length, about.get("max_target_positions", default=length)))


def _kind_of_labels(about: ModelInputs) -> str:
    """The kind of labels of the model's head; empty where their form is not known."""
    kind = "pairs" if about.compares else labels_of(about.model)
    if kind == "decoded tokens" and not about.config.is_encoder_decoder:
        kind = "tokens"
    return kind if _GIVEN_AS.get(kind, "labels") in about.accepted else ""


def _labels(about: ModelInputs, kind: str, size: int, batch: Batch) -> Batch:
    """Made-up labels of a kind for a batch of inputs."""
    match kind:
        case "pairs":
            return {"return_loss": True}
        case "future":
            horizon = about.get("prediction_length", "horizon_length") or _USUAL_HORIZON
            return {"future_values": noise(size, horizon, *batch["past_values"].shape[2:])}
        case "span":
            return {name: whole_numbers(about.length, size) for name in ("start_positions", "end_positions")}
        case "tokens" if "input_ids" in batch:
            labels = batch["input_ids"].clone()
        case "tokens" | "decoded tokens":
            labels = about.tokens(size, _decoded(about, batch))
        case "characters":
            labels = about.tokens(size, _CHARACTERS)
        case "pixels":
            labels = _classes(about.config, size, *batch["pixel_values"].shape[-2:])
        case "token classes":
            labels = _classes(about.config, *batch["input_ids"].shape)
        case _:
            labels = _classes(about.config, size)
    return {"labels": labels}


def _classes(config: Any, *shape: int) -> torch.Tensor:
    if getattr(config, "problem_type", None) == "regression" or config.num_labels == 1:
        return noise(*shape)
    return whole_numbers(config.num_labels, *shape)
