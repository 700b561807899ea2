"""StepPlan: how a step runs. Recipes change it; ``runtime/`` turns it and the objects into one callable step."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.records import Mode


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How one step runs.

    ``autocast``: ``none``, ``bfloat16`` or ``float16``; float16 in training goes with a gradient scaler.
    ``zero_grad``: ``none`` (set_to_none), ``zeros``, or ``manual`` (``param.grad = None`` by hand).
    ``grad_mode`` (inference): ``grad``, ``no_grad`` or ``inference_mode``.
    ``compile_mode``: ``none`` or a mode of ``torch.compile``.
    ``memory_format``: the format that batches of the matching rank are converted to, or ``none``.
    ``input_dtype``: the type that the floating-point tensors of a batch are converted to, or ``none``.
    ``attention_backend``: ``auto``, or the one kernel that ``scaled_dot_product_attention`` may use: ``flash``,
    ``cudnn``, ``efficient`` or ``math``.
    ``loss_item`` (training): ``never``, ``every_step`` (the host reads the loss), or ``accumulated`` on the device.
    ``empty_cache`` (training on CUDA): ``never``, ``every_step``, or ``every_step_with_del`` (of the batch, before it).
    """

    mode: Mode
    device: str
    autocast: str = "none"
    zero_grad: str = "none"
    grad_mode: str = "grad"
    compile_mode: str = "none"
    cuda_graph: bool = False
    non_blocking: bool = False
    memory_format: str = "none"
    input_dtype: str = "none"
    attention_backend: str = "auto"
    loss_item: str = "never"
    empty_cache: str = "never"

    @property
    def device_type(self) -> str:
        """``cuda`` or ``cpu``."""
        return self.device.partition(":")[0]

    @property
    def scales_gradients(self) -> bool:
        """Whether training needs a gradient scaler."""
        return self.mode is Mode.TRAIN and self.autocast == "float16"
