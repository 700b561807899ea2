"""Made-up batches for Hugging Face models: the inputs that a model needs, and labels of its head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from advisor.errors import TargetError
from advisor.records import TargetSpec
from advisor.step.batch import map_tensors
from advisor.workloads.guess import noise, typed, whole_numbers
from advisor.workloads.hubs.contract import Samples, check_input
from advisor.workloads.hubs.hf_classes import labels_of, text_of
from advisor.workloads.hubs.hf_inputs import Batch, Make, ModelInputs, future, maker_of_inputs
from advisor.workloads.sizing import counted_run, runs_on_gpu

# Length of a text, and of one on a CPU: tokens. Longer ones are possible with --input.
_LENGTH, _SHORT = 512, 64
_DECODED = 32  # tokens that are decoded from an image or sound
_CHARACTERS = 12
_NO_LIMIT = 2**20  # positions of a model that counts them without a table
_COUNTED = 2  # samples of a batch that shows whether a model computes a loss by itself

_ADAMW = partial(torch.optim.AdamW, lr=1e-5)

MakeLabels = Callable[[int, Batch], Batch]


def hf_samples(model: Any, spec: TargetSpec, *, train: bool) -> Samples:
    """Batches of keyword arguments for a ``PreTrainedModel``. Raises TargetError where its inputs are unknown."""
    _complete(model)
    about = ModelInputs(model, spec, min(longest_text(model), _LENGTH if runs_on_gpu(spec) else _SHORT))
    _check_text(about)
    labels = _labels(about) if train else None
    make = partial(_batch, about, maker_of_inputs(about), labels=labels)
    trains = labels is not None
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
    return maker_of_inputs(ModelInputs(model, spec, length))


def longest_text(model: Any) -> int:
    """The number of positions that the configuration gives a model; a usual number where it names none."""
    config = text_of(model.config)
    named = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    return next((positions for positions in named if isinstance(positions, int) and positions > 1), _NO_LIMIT)


def _complete(model: Any) -> None:
    """Set the start and padding tokens of a decoder; a configuration without a checkpoint may lack them."""
    config, text = model.config, text_of(model.config)
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(text, "pad_token_id", None) or 0
    classes = labels_of(model) == "class" and model.main_input_name == "input_ids"  # they are read before the padding
    for part in (text, config) if config.is_encoder_decoder or classes else ():
        if getattr(part, "pad_token_id", None) is None:
            part.pad_token_id = 0


def _check_text(about: ModelInputs) -> None:
    """Raise TargetError where ``--input`` gives a text that the model cannot take."""
    given, longest = about.spec.input_shape, longest_text(about.model)
    if given is None or about.model.main_input_name != "input_ids":
        return
    if "pixel_values" not in about.accepted:
        check_input(about.spec, 2, "8x128")
    if given[-1] > longest:
        raise TargetError(
            f"a text of {given[-1]} tokens is too long for {type(about.model).__name__}, which takes {longest}.",
            f"Give a shorter one, as in --input {given[0]}x{longest}.",
        )


def _batch(about: ModelInputs, make: Make, size: int, labels: MakeLabels | None) -> Batch:
    """Inputs in the model's floating-point type, with labels or a decoder's start tokens."""
    batch = make(size)
    batch |= labels(size, batch) if labels else _decoder_inputs(about, size, batch)
    made: Batch = map_tensors(lambda tensor: typed(tensor, about.model), batch)
    return made


def _decoder_inputs(about: ModelInputs, size: int, batch: Batch) -> Batch:
    """The decoder's inputs where there are no labels that it could start from."""
    if not about.config.is_encoder_decoder or "decoder_input_ids" not in about.accepted:
        return {}
    tokens = about.tokens(size, _decoded(about, batch))
    tokens[:, 0] = about.get("decoder_start_token_id", default=0)
    return {"decoder_input_ids": tokens}


def _decoded(about: ModelInputs, batch: Batch) -> int:
    length = batch["input_ids"].shape[-1] if "input_ids" in batch else _DECODED
    return int(min(length, about.get("max_target_positions", default=length)))


def _labels(about: ModelInputs) -> MakeLabels | None:
    """Makes labels for the model's head; None where their form is not known."""
    classes = partial(_classes, about.config)
    makers: dict[str, MakeLabels] = {
        "tokens": lambda size, batch: {"labels": _next_tokens(about, size, batch)},
        "decoded tokens": lambda size, batch: {"labels": about.tokens(size, _decoded(about, batch))},
        "characters": lambda size, batch: {"labels": about.tokens(size, _CHARACTERS)},
        "class": lambda size, batch: {"labels": classes(size)},
        "token classes": lambda size, batch: {"labels": classes(*batch["input_ids"].shape)},
        "pixels": lambda size, batch: {"labels": classes(size, *batch["pixel_values"].shape[-2:])},
        "span": lambda size, batch: {
            "start_positions": whole_numbers(about.length, size),
            "end_positions": whole_numbers(about.length, size),
        },
        "pairs": lambda size, batch: {"return_loss": True},
        "future": lambda size, batch: future(about, batch),
    }
    kind = "pairs" if about.compares else labels_of(about.model)
    if kind == "decoded tokens" and not about.config.is_encoder_decoder:
        kind = "tokens"
    named = {"span": "start_positions", "pairs": "return_loss", "future": "future_values"}.get(kind, "labels")
    return makers.get(kind) if named in about.accepted else None


def _next_tokens(about: ModelInputs, size: int, batch: Batch) -> torch.Tensor:
    """Labels: the tokens of the text; for a model of images or sound, of the text that it decodes."""
    ids: torch.Tensor | None = batch.get("input_ids")
    return about.tokens(size, _decoded(about, batch)) if ids is None else ids.clone()


def _classes(config: Any, *shape: int) -> torch.Tensor:
    if getattr(config, "problem_type", None) == "regression" or config.num_labels == 1:
        return noise(*shape)
    return whole_numbers(config.num_labels, *shape)
