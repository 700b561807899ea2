"""Hugging Face Transformers: exported settings as TrainingArguments, and a callback that applies the others."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from advisor.frameworks import of_objects
from advisor.recipe.settings import Settings
from advisor.step.tuning import Tuning

# For each setting, the name of the argument that takes its value.
_NAMED = {
    "step.accumulate": "gradient_accumulation_steps",
    "data.batch_size": "per_device_train_batch_size",
    "data.num_workers": "dataloader_num_workers",
    "data.pin_memory": "dataloader_pin_memory",
    "data.persistent_workers": "dataloader_persistent_workers",
    "data.prefetch_factor": "dataloader_prefetch_factor",
    "parallel.bucket_cap_mb": "ddp_bucket_cap_mb",
    "parallel.find_unused_parameters": "ddp_find_unused_parameters",
}
_AUTOCAST = {"bfloat16": "bf16", "float16": "fp16"}


def arguments(path: str | Path) -> dict[str, Any]:
    """Return a file's settings as arguments of ``TrainingArguments``, without those that it has no argument for.

    :class:`TunedCallback` applies the other settings. Raises UsageError if the file cannot be read.
    """
    settings = Settings.from_file(path)
    named: dict[str, Any] = {name: settings[key] for key, name in _NAMED.items() if key in settings}
    if (half := _AUTOCAST.get(str(settings.get("precision.autocast")))) is not None:
        named[half] = True
    named |= {"accelerator_config": {"non_blocking": True}} if settings.get("data.non_blocking") else {}
    named |= {"logging_nan_inf_filter": False} if settings.get("loop.loss_item") == "never" else {}
    return named


class TunedCallback(TrainerCallback):  # type: ignore[misc]
    """Applies the settings of a file when training begins: ``Trainer(..., callbacks=[TunedCallback("tuned.yaml")])``.

    The model and the optimizer are changed in place. A warning names settings that belong into ``TrainingArguments``
    and are missing there; :func:`arguments` makes these arguments from the same file.
    """

    def __init__(self, path: str | Path) -> None:
        self.tuning = Tuning.from_file(path)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Prepare the model and the optimizer. They exist by now, and a checkpoint's state is loaded."""
        settings = self.tuning.settings
        if args.torch_compile:  # the Trainer has compiled the model already
            settings = settings.filtered(lambda key: not key.startswith("compile."))
        done = {key: getattr(args, name) for key, name in _NAMED.items()} | {
            "precision.autocast": "bfloat16" if args.bf16 else "float16" if args.fp16 else "none",
            "data.non_blocking": bool(args.accelerator_config.non_blocking),
            "loop.loss_item": "every_step" if args.logging_nan_inf_filter else "never",
            "parallel.strategy": "fully_shard" if args.fsdp else "ddp" if args.world_size > 1 else "single",
            "parallel.no_sync": True,
        }
        settings = of_objects(settings, args.device.type, done)
        Tuning(settings).prepare(kwargs["model"], kwargs["optimizer"])
