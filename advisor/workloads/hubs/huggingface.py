"""Hugging Face models by name, from a folder, a configuration or a Trainer. Nothing is downloaded.

``hf:NAME -- generate=64`` measures ``model.generate``.
"""

import contextlib
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from advisor.errors import TargetError
from advisor.process.meanwhile import replaced
from advisor.records import Mode, TargetSpec, Value
from advisor.workloads.guess import runs_on_gpu
from advisor.workloads.hubs.contract import Adapter, options_of
from advisor.workloads.hubs.hf_batches import ModelInputs, hf_samples, longest_text
from advisor.workloads.hubs.hf_classes import architecture_in, class_for, parts_of, text_of
from advisor.workloads.loop import Loop

_TRAIN_COPIES = 4  # memory for training, in sizes of the weights: weights, gradients and AdamW's two states
_MOST_OF_MEMORY = 0.8
_USUAL_VOCABULARY = 32  # the vocabulary size of sound and protein models, if the configuration has none
_PATHS = (".", "/", "~")  # the first characters of paths; no model's name begins with them
_OPTION = "generate"
_USUAL_PROMPT = 32  # tokens, unless --input says otherwise


class HuggingFace(Adapter):
    """``hf:NAME``, ``hf:FOLDER``, and configurations, models and Trainers that a build returns."""

    prefix = "hf"
    package = "transformers"

    def load(self, name: str, spec: TargetSpec) -> Any:
        """Build the model ``name``: from its folder or the cache, else with its architecture's default shape."""
        config, notes = _config(self.imported(), name, spec)
        options = options_of(spec)
        new_tokens = options.pop(_OPTION, 0)
        if type(new_tokens) is not int or new_tokens < 0:
            raise TargetError(f"{_OPTION}={new_tokens} is not a number of tokens.", f"Write {_OPTION}=64, for example.")
        config = _with_options(config, options, name)
        if new_tokens and spec.mode is None:
            spec = replace(spec, mode=Mode.INFER)
        try:
            model, origin = _model(config, name, spec)
        except TargetError as error:  # the notes tell if it is another model than was named
            error.hint = ". ".join([*notes, error.hint])
            raise
        if new_tokens:
            return _generating(model, new_tokens, spec, [*notes, origin])
        return Loop(model=model.train(), notes=[*notes, origin])

    def workload(self, value: Any, spec: TargetSpec) -> Any:
        import transformers

        if isinstance(value, transformers.PretrainedConfig):
            return Loop(model=_random_weights(value, spec), notes=["random weights"])
        is_trainer = any(kind.__module__ == "transformers.trainer" for kind in type(value).__mro__)
        return of_trainer(value) if is_trainer else None

    def samples(self, model: nn.Module, spec: TargetSpec, *, train: bool) -> Loop | None:
        import transformers

        plain: Any = getattr(model, "get_base_model", lambda: model)()  # of peft's wrapper
        return hf_samples(plain, spec, train=train) if isinstance(plain, transformers.PreTrainedModel) else None


def _config(transformers: Any, name: str, spec: TargetSpec) -> tuple[Any, list[str]]:
    """The configuration for a name, and notes on its origin."""
    if (path := _on_disk(name, spec)) is not None:
        return transformers.AutoConfig.from_pretrained(str(path), local_files_only=True), []
    with contextlib.suppress(OSError, ValueError):
        return transformers.AutoConfig.from_pretrained(name, local_files_only=True), []
    kind = architecture_in(name, transformers.CONFIG_MAPPING)
    if kind is None:
        near = get_close_matches(name.rpartition("/")[2].lower(), transformers.CONFIG_MAPPING)
        raise TargetError(
            f"{name} is not on this machine, and its name contains no architecture that transformers knows.",
            f"Type `hf download {name}` first (a gated model needs `hf auth login`). Or give an architecture, for "
            f"example hf:{near[0] if near else 'bert'}.",
        )
    note = (
        f"{name} is not on this machine: the default configuration of {kind} is measured instead "
        f"(`hf download {name}` fetches the model)"
    )
    config = transformers.CONFIG_MAPPING[kind]()
    text = text_of(config)
    if getattr(text, "vocab_size", 0) is None:  # only a checkpoint has it (protein models)
        text.vocab_size = _USUAL_VOCABULARY
        text.pad_token_id = text.pad_token_id or 0
    return config, [note] if name != kind else []


def _on_disk(name: str, spec: TargetSpec) -> Path | None:
    """The path of a configuration or folder; None for a model's name. Raises TargetError if the path is missing."""
    path, is_path = Path(spec.directory, name).expanduser(), name.startswith(_PATHS)
    if path.is_file() or (path / "config.json").is_file() or (is_path and path.is_dir()):
        return path
    if is_path:
        raise TargetError(f"there is no folder {name}.", "Give a folder that holds a config.json, or a model's name.")
    return None


def _with_options(config: Any, options: dict[str, Any], name: str) -> Any:
    """Set options of a configuration. Raises TargetError for an option that it does not have.

    A default configuration is created again with the options, because other values may depend on them (a decoder's
    layers, for example). A configuration from a file keeps its other values.
    """
    own = {key: value for key, value in options.items() if hasattr(config, key)}
    if own and not config.name_or_path:
        config = type(config)(**own)
    holders = [config, text_of(config), *parts_of(config)]  # text and image parts have their own sizes
    for key, value in options.items():
        holder = next((part for part in holders if hasattr(part, key)), None)
        if holder is None:
            near = get_close_matches(key, {other for part in holders for other in vars(part)})
            hint = f"Did you mean {', '.join(near)}?" if near else "Leave it out."
            raise TargetError(f"the configuration of {name} has no {key!r}.", hint)
        setattr(holder, key, value)
    return config


def _model(config: Any, name: str, spec: TargetSpec) -> tuple[nn.Module, str]:
    """The model with its weights if they are on disk, else with random weights; and a note that says which."""
    kind = class_for(config)
    with contextlib.suppress(OSError):
        weights = str(_on_disk(name, spec) or name)
        taken = {"config": config, "local_files_only": True, "ignore_mismatched_sizes": True}
        return kind.from_pretrained(weights, **taken), f"{kind.__name__} with its weights (random if a shape differs)"
    return _random_weights(config, spec), f"{kind.__name__} with random weights"


def _random_weights(config: Any, spec: TargetSpec) -> Any:
    """A model with random weights. Raises TargetError if the machine's memory is too small."""
    kind, infers = class_for(config), spec.mode is Mode.INFER
    weights = 0
    if not runs_on_gpu(spec):
        with torch.device("meta"):
            weights = sum(parameter.nbytes for parameter in kind(config).parameters())
    needed, room = weights * (1 if infers else _TRAIN_COPIES), psutil.virtual_memory().total
    if needed >= _MOST_OF_MEMORY * room:
        raise TargetError(
            f"{'Inference' if infers else 'Training'} {kind.__name__} needs about {needed / 2**30:.0f} GiB, and this "
            f"machine has {room / 2**30:.0f} GiB.",
            f"Make it smaller, as in `-- num_hidden_layers=2`{'' if infers else ', or give --mode infer'}.",
        )
    return kind(config)


def of_trainer(trainer: Any) -> Loop:
    """A Trainer's loop: its model, its loader, its loss and its optimizer."""
    if trainer.train_dataset is None:
        raise TargetError("the Trainer has no train_dataset.", "Give it a train_dataset: its training is measured.")
    arguments = trainer.args
    # Keep Accelerate from wrapping the loader: a plain loader can be made again with other options.
    with replaced(trainer.accelerator, "prepare", lambda *objects, **_: objects[0] if len(objects) == 1 else objects):
        loader = trainer.get_train_dataloader()
    if trainer.optimizer is None:
        trainer.create_optimizer()

    def compute_loss(model: nn.Module, batch: Any) -> Any:
        return trainer.compute_loss(model, dict(batch))

    current: dict[str, Value] = {}
    if arguments.bf16 or arguments.fp16:
        current["precision.autocast"] = "bfloat16" if arguments.bf16 else "float16"
    if arguments.torch_compile:
        current["compile.mode"] = arguments.torch_compile_mode or "default"
    if arguments.logging_nan_inf_filter:  # it reads each step's loss, and so waits for the GPU
        current["loop.loss_item"] = "every_step"
    notes = ["the Trainer's model, loader, compute_loss and optimizer; its callbacks and schedule are left out"]
    if arguments.gradient_accumulation_steps > 1:
        notes.append(f"each step is one of the {arguments.gradient_accumulation_steps} that the Trainer accumulates")
    return Loop(
        model=trainer.model,
        data=loader,
        loss=compute_loss,
        optimizer=trainer.optimizer,
        current=current,
        clip_grad=arguments.max_grad_norm if (arguments.max_grad_norm or 0) > 0 else None,  # 0: no clipping
        notes=notes,
        trainer="transformers",
    )


def _generating(model: Any, new_tokens: int, spec: TargetSpec, notes: list[str]) -> Loop:
    """The generation of text by a model, as a workload for inference."""
    name = type(model).__name__
    if spec.mode is Mode.TRAIN:
        raise TargetError(f"{_OPTION} is for inference, but --mode train is given.", "Leave one of them out.")
    length = spec.input_shape[-1] if spec.input_shape else _USUAL_PROMPT
    room = longest_text(model) if not model.config.is_encoder_decoder else length + new_tokens
    if length + new_tokens > room:
        raise TargetError(
            f"a prompt of {length} tokens and {new_tokens} new tokens exceed the {room} positions of {name}.",
            f"Generate fewer, as in `-- {_OPTION}={max(1, room - length)}`, or give shorter prompts with --input 1x8.",
        )
    made = ModelInputs(model, replace(spec, input_shape=None), length).inputs
    settings = model.generation_config
    settings.eos_token_id = None  # no prompt ends early
    settings.pad_token_id = settings.pad_token_id or 0
    if settings.decoder_start_token_id is None:
        settings.decoder_start_token_id = getattr(model.config, "decoder_start_token_id", None)

    def generate(batch: dict[str, Any]) -> Any:  # a decoder's result begins with the prompt
        return model.generate(**batch, do_sample=False, max_new_tokens=new_tokens)

    generate.new_tokens = new_tokens  # type: ignore[attr-defined]  # for the report's tokens per second
    notes = [*notes, f"a step continues each prompt of {length} random tokens by {new_tokens}, greedily"]
    return Loop(model=model.eval(), data=made, mode=Mode.INFER, step=generate, notes=notes, usual_size=1)
