"""Made-up inputs and labels for Hugging Face models. The shapes come from the model's configuration."""

from functools import partial
from typing import Any

import torch

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.step.batch import ForwardInputs, map_tensors
from advisor.workloads.guess import counted_run, noise, runs_on_gpu, typed, whole_numbers
from advisor.workloads.hubs.contract import sample_shape
from advisor.workloads.hubs.hf_classes import labels_of, parts_of, text_of
from advisor.workloads.loop import Loop

_LENGTH, _SHORT = 512, 64  # length of a text, and of one on a CPU: tokens. Longer ones are possible with --input
_DECODED, _CHARACTERS = 32, 12  # tokens that are decoded from an image or sound; characters of a label
_NO_LIMIT = 2**20  # positions of a model that counts them without a table
_COUNTED = 2  # samples of a batch that shows whether a model computes a loss by itself

_ADAMW = partial(torch.optim.AdamW, lr=1e-5)
_USUAL_SIDE = 224
_FRAMES_HEARD = 200  # frames in a spectrogram, if the model does not fix the number
_SOUND_LENGTH = 16000  # audio samples: one second at the usual rate
_BINS = 80  # the usual number of frequency bins in a spectrogram
_FREE_BINS = ("feature_projection_input_dim", "input_feat_per_channel", "input_channels", "input_dim")
_USUAL_VOCABULARY = 128  # the vocabulary size, if the configuration has none (models of characters)
_USUAL_STEPS, _USUAL_HORIZON = 512, 24  # past and future steps of a time series, if the model does not fix them
# The names of the parameters for labels of these kinds; for all other kinds the name is "labels".
_GIVEN_AS = {"span": "start_positions", "pairs": "return_loss", "future": "future_values"}

# The inputs that can be made up. A model's main input is the first that it accepts, unless the model names another.
_INPUTS = ("input_ids", "pixel_values", "input_values", "input_features", "past_values")

Batch = dict[str, Any]


def hf_samples(model: Any, spec: TargetSpec, *, train: bool) -> Loop:
    """Batches of keyword arguments for a ``PreTrainedModel``. Raises TargetError if its inputs are unknown."""
    given, longest = spec.input_shape, longest_text(model)
    made = ModelInputs(model, spec, min(longest, _LENGTH if runs_on_gpu(spec) else _SHORT))
    if given is not None and model.main_input_name == "input_ids":
        if "pixel_values" not in made.accepted:
            sample_shape(spec, 2, "8x128")
        if given[-1] > longest:
            raise TargetError(
                f"a text of {given[-1]} tokens is too long for {type(model).__name__}, which takes {longest}.",
                f"Give a shorter one, as in --input {given[0]}x{longest}.",
            )
    labels = made.kind_of_labels() if train else ""
    make, trains = partial(made.batch, labels), bool(labels)
    if train and not trains:  # masked autoencoders compute a loss without labels
        counted = counted_run(model, make(_COUNTED))
        loss = getattr(counted[0], "loss", None) if counted else None
        trains = isinstance(loss, torch.Tensor) and loss.numel() == 1
    shapes = {name: list(value.shape[1:]) for name, value in make(1).items() if isinstance(value, torch.Tensor)}
    notes = ["random inputs: " + ", ".join(f"{name} {shape}" for name, shape in shapes.items() if "label" not in name)]
    if train and not trains:
        notes.append(f"labels that fit the loss of {type(model).__name__} are not known")
    return Loop(data=make, mode=Mode.TRAIN if trains else None, optimizer=_ADAMW, notes=notes)


def longest_text(model: Any) -> int:
    """The number of positions in the model's configuration; a number without effect if it has none."""
    said = getattr(text_of(model.config), "max_position_embeddings", None)
    return said if isinstance(said, int) and said > 1 else _NO_LIMIT


class ModelInputs:
    """The batches of a model: its main input, and the other inputs that its forward pass requires or compares.

    ``length`` is the length of a text in tokens. ``accepted`` are the parameters of the forward pass by name. Missing
    start and padding tokens are added to the configuration. Raises TargetError if a required input is unknown.
    """

    def __init__(self, model: Any, spec: TargetSpec, length: int) -> None:
        self.model, self.config, self.length = model, model.config, length
        self._shape = spec.input_shape[1:] if spec.input_shape else None  # of one sample
        forward = ForwardInputs(model)
        self.accepted, required = forward.names, forward.required
        self._compares = {"return_loss", "input_ids"} <= {*self.accepted}  # text with an image or sound, as in CLIP
        _complete(model)
        named = [name for name in _INPUTS if name in self.accepted]
        main = model.main_input_name
        if main not in named:
            main = next((name for name in named if name in required), next(iter(named), ""))
        self._taken = [name for name in named if self._compares or name == main or name in required]
        if not self._taken or not self.inputs(1).keys() >= set(required):
            called = ", ".join((required or self.accepted)[:6])
            raise TargetError(
                f"no batch can be made up for {type(model).__name__}: its forward needs {called}.",
                "Return (model, batch) from a build() of your own, with a dict of these inputs as the batch.",
            )

    def inputs(self, size: int) -> Batch:
        """The inputs of ``size`` samples, with the places of a text's words on a page if the model accepts them."""
        batch: Batch = {}
        for name in self._taken:
            if name == "input_ids":
                batch["input_ids"] = ids = self._tokens(size, *(self._shape or (self.length,)))
                if "attention_mask" in self.accepted:
                    batch["attention_mask"] = torch.ones_like(ids)
            else:
                given = self._shape if name != "pixel_values" or len(self._shape or ()) > 1 else None  # texts: 1 size
                batch[name] = noise(size, *(given or self._shape_of(name)))
        if "bbox" in self.accepted and "input_ids" in batch:  # left, upper, right and lower edge, as shares of the page
            batch["bbox"] = torch.tensor([0.25, 0.25, 0.75, 0.5]).expand(*batch["input_ids"].shape, 4).clone()
        return batch

    def batch(self, labels: str, size: int) -> Batch:
        """Inputs in the model's floating-point type, with labels of this kind, or else a decoder's start tokens."""
        batch = self.inputs(size)
        if labels:
            batch |= self._labels(labels, size, batch)
        elif self.config.is_encoder_decoder and "decoder_input_ids" in self.accepted:
            batch["decoder_input_ids"] = tokens = self._decoded(size, batch)
            tokens[:, 0] = self._get("decoder_start_token_id", default=0)
        made: Batch = map_tensors(lambda tensor: typed(tensor, self.model), batch)
        return made

    def kind_of_labels(self) -> str:
        """The kind of labels for the model's head; empty if their form is not known."""
        kind = "pairs" if self._compares else labels_of(self.model)
        return kind if _GIVEN_AS.get(kind, "labels") in self.accepted else ""

    def _get(self, *names: str, default: Any = None) -> Any:
        """The first of these attributes in the configuration or its parts; ``default`` if there is none."""
        said = (getattr(part, name, None) for name in names for part in parts_of(self.config))
        return next((value for value in said if value is not None), default)

    def _shape_of(self, name: str) -> tuple[int, ...]:
        """One sample's shape, from the configuration, for an input of images, sounds or time series."""
        bins = self._get("num_mel_bins")
        match name:
            case "pixel_values":  # several frames for a video model
                side, frames = self._get("image_size", default=_USUAL_SIDE), self._get("num_frames")
                height, width = (side[0], side[-1]) if isinstance(side, list | tuple) else (side, side)
                return (*((frames,) if frames else ()), self._get("num_channels", default=3), height, width)
            case "input_values":  # sound; a codec's has a channel dimension, other models take a spectrogram
                if self._get("conv_dim"):
                    return (_SOUND_LENGTH,)
                longest = self._get("max_length")
                return (longest, bins) if bins and longest else (self._get("audio_channels", default=1), _SOUND_LENGTH)
            case "input_features":  # spectrograms, of the configuration's length if it has one
                free = self._get(*_FREE_BINS)
                positions = self._get("max_source_positions")
                if bins and positions and not free:
                    return (bins, 2 * positions)  # two convolutions, the second with a stride of two
                return (_FRAMES_HEARD, free or bins or _BINS)
            case _:  # the past of a time series
                channels = self._get("num_input_channels")
                steps = min(self._get("context_length", default=_USUAL_STEPS), _USUAL_STEPS)
                return (steps, channels) if channels else (steps,)

    def _tokens(self, *shape: int) -> torch.Tensor:
        """Token ids, without special tokens (padding, image): models treat those differently."""
        said = {**vars(self.config), **vars(text_of(self.config))}
        named = [i for name, i in said.items() if name.endswith(("_token_id", "_token_index"))]
        several = (ids if isinstance(ids, list | tuple) else [ids] for ids in named)
        special = [i for ids in several for i in ids if isinstance(i, int)]  # some models have several end tokens
        low = max((i for i in special if 0 <= i < 10), default=-1) + 1
        known = getattr(text_of(self.config), "vocab_size", None)
        tokens = whole_numbers(known if isinstance(known, int) else _USUAL_VOCABULARY, *shape, at_least=low)
        tokens[torch.isin(tokens, torch.tensor(special, dtype=torch.long))] = low
        return tokens

    def _decoded(self, size: int, batch: Batch) -> torch.Tensor:
        """The tokens for a decoder: as many as the text has, or a fixed number without a text."""
        length = batch["input_ids"].shape[-1] if "input_ids" in batch else _DECODED
        return self._tokens(size, min(length, self._get("max_target_positions", default=length)))

    def _labels(self, kind: str, size: int, batch: Batch) -> Batch:
        """Made-up labels of this kind for a batch of inputs."""
        match kind:
            case "pairs":
                return {"return_loss": True}
            case "future":
                horizon = self._get("prediction_length", "horizon_length") or _USUAL_HORIZON
                return {"future_values": noise(size, horizon, *batch["past_values"].shape[2:])}
            case "span":
                return {name: whole_numbers(self.length, size) for name in ("start_positions", "end_positions")}
            case "tokens":
                labels = self._decoded(size, batch)
            case "characters":
                labels = self._tokens(size, _CHARACTERS)
            case "pixels":
                labels = self._classes(size, *batch["pixel_values"].shape[-2:])
            case "token classes":
                labels = self._classes(*batch["input_ids"].shape)
            case _:
                labels = self._classes(size)
        return {"labels": labels}

    def _classes(self, *shape: int) -> torch.Tensor:
        if getattr(self.config, "problem_type", None) == "regression" or self.config.num_labels == 1:
            return noise(*shape)
        return whole_numbers(self.config.num_labels, *shape)


def _complete(model: Any) -> None:
    """Set the missing start and padding tokens: a default configuration may lack them."""
    config, text = model.config, text_of(model.config)
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(text, "pad_token_id", None) or 0
    classes = labels_of(model) == "class" and model.main_input_name == "input_ids"  # it reads the last unpadded token
    for part in (text, config) if config.is_encoder_decoder or classes else ():
        if getattr(part, "pad_token_id", None) is None:
            part.pad_token_id = 0
