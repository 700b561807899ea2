"""StepPlan: how a step runs. Recipes change it; ``step/step.py`` makes one callable step of it and the objects."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

AROUND_LOSS = "around_loss"  # the step is captured in CUDA graphs, but for its loss


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of one step.

    ``mode``: ``train`` or ``infer``. ``device``: the model's, such as ``cuda:0``.
    ``autocast``: ``none``, ``bfloat16`` or ``float16``; float16 in training goes with a gradient scaler.
    ``zero_grad``: ``none`` (set_to_none), ``zeros``, or ``manual`` (``param.grad = None`` by hand).
    ``grad_mode`` (inference): ``grad``, ``no_grad``, ``inference_mode``, or ``caller`` for the one that a call finds.
    ``compile_mode``: ``none`` or a mode of ``torch.compile``. ``compile_scope``: ``model``, ``regional`` for its
    repeated blocks, ``pointwise`` for its pointwise operations, or (training) ``with_loss`` for the model and the loss
    as one. ``few_shapes``: batches are padded to few lengths, and the model is compiled for each. ``freezing``
    (inference): parameters become constants of the compiled code. ``combo_kernels``: independent small kernels are
    generated as one. A scope or one of these two without a ``compile_mode`` compiles in the mode ``default``.
    ``clip_norm`` (training): what the norm of all gradients is clipped to, or None.
    ``accumulate`` (training): how many batches make one update.
    ``create_on_device``: what the model and the loss create without naming a device is created on this one.
    ``device_prefetch``: the loader's next batch is copied while the present one is computed on. ``device_transform``:
    what is applied to the loader's batches once they are on the device, or None.
    ``memory_format``: the format that batches of the matching rank are converted to, or ``none``.
    ``input_dtype``: the type that the floating-point tensors of a batch are converted to, or ``none``.
    ``loss_item`` (training): ``never``, ``every_step`` (the host reads the loss), or ``accumulated`` on the device.
    ``cuda_graph`` (CUDA): whether the step is captured in a CUDA graph; ``around_loss`` (training) leaves its loss out.
    ``empty_cache`` (training on CUDA): ``never``, ``every_step``, or ``every_step_with_del`` (of the batch, before it).
    ``strategy`` (training): ``single``, ``ddp`` or ``fully_shard``; what follows it are options of PyTorch's by their
    names, ``no_sync`` (batches that make no update exchange no gradients) and ``length_bucketing``.
    """

    mode: str
    device: str
    autocast: str = "none"
    zero_grad: str = "none"
    grad_mode: str = "grad"
    compile_mode: str = "none"
    compile_scope: str = "model"
    few_shapes: bool = False
    freezing: bool = False
    combo_kernels: bool = False
    clip_norm: float | None = None
    cuda_graph: bool | str = False
    non_blocking: bool = False
    accumulate: int = 1
    create_on_device: bool = False
    device_prefetch: bool = False
    device_transform: Callable[[Any], Any] | None = None
    memory_format: str = "none"
    input_dtype: str = "none"
    loss_item: str = "never"
    empty_cache: str = "never"
    strategy: str = "single"
    gradient_as_bucket_view: bool = False
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    no_sync: bool = False
    reshard_after_forward: bool = True
    shard_unit: str = "blocks"
    length_bucketing: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a norm that no gradients can be clipped to: PyTorch would turn their direction round."""
        norm = self.clip_norm
        if norm is not None and (isinstance(norm, bool) or not isinstance(norm, int | float) or not norm > 0):
            raise ValueError(f"clip_grad={norm!r} is not a norm to clip gradients to: give a number above 0, or None")

    @property
    def device_type(self) -> str:
        """The type of the device: ``cuda`` or ``cpu``."""
        return self.device.partition(":")[0]

    @property
    def compiles_with(self) -> str:
        """The mode of torch.compile for the model; ``none`` if it is not compiled."""
        asked = self.compile_scope != "model" or self.freezing or self.combo_kernels
        return "default" if asked and self.compile_mode == "none" else self.compile_mode

    @property
    def converts_batches(self) -> bool:
        """Whether a batch on the device still needs another layout or type."""
        return self.memory_format != "none" or self.input_dtype != "none"

    @property
    def compiles_loss(self) -> bool:
        """Whether the model and the loss are compiled as one."""
        return self.compile_scope == "with_loss" and self.mode == "train"

    @property
    def runs_under(self) -> str:
        """The grad mode of inference: constants are folded only where nothing could ask for their gradients."""
        return "no_grad" if self.freezing and self.grad_mode in ("grad", "caller") else self.grad_mode

    @property
    def scales_gradients(self) -> bool:
        """Whether training needs a gradient scaler."""
        return self.mode == "train" and self.autocast == "float16"
