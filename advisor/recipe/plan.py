"""StepPlan: how a step runs. Recipes change the plan; ``step/step.py`` makes a callable step from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

AROUND_LOSS = "around_loss"  # the step without its loss is captured in CUDA graphs


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of one step. The fields after ``strategy`` are options for several GPUs, with PyTorch's names."""

    mode: str  # train or infer
    device: str  # the model's device, such as cuda:0
    autocast: str = "none"  # or bfloat16, float16; training in float16 uses a gradient scaler
    zero_grad: str = "none"  # gradients are set to None; or to zeros; or manual: a loop does `param.grad = None`
    grad_mode: str = "grad"  # in inference also no_grad, inference_mode, or caller: the mode around the call
    compile_mode: str = "none"  # or a mode of torch.compile; see compiles_with for scope, freezing, combo kernels
    compile_scope: str = "model"  # or regional (repeated blocks), pointwise (operations), with_loss (model and loss)
    few_shapes: bool = False  # batches are padded to few lengths, and the model is compiled for each length
    freezing: bool = False  # in inference: parameters become constants of the compiled code
    combo_kernels: bool = False  # independent small kernels are generated as one kernel
    clip_norm: float | None = None  # in training: the largest norm of all gradients; None for no clipping
    cuda_graph: bool | str = False  # on CUDA: the step is captured; AROUND_LOSS (training) leaves its loss out
    non_blocking: bool = False  # the host goes on while a batch is copied
    accumulate: int = 1  # in training: the number of batches for one update
    create_on_device: bool = False  # tensors that model and loss create without a device are created on `device`
    device_prefetch: bool = False  # the loader's next batch is copied while the present batch is computed
    device_transform: Callable[[Any], Any] | None = None  # applied to the loader's batches on the device
    memory_format: str = "none"  # batches with a matching number of dimensions are converted to this format
    input_dtype: str = "none"  # the floating-point tensors of a batch are converted to this type
    loss_item: str = "never"  # in training: or every_step (the host reads the loss), accumulated (on the device)
    empty_cache: str = "never"  # in training on CUDA: or every_step, every_step_with_del (the batch is deleted first)
    strategy: str = "single"  # in training: or ddp, fully_shard
    gradient_as_bucket_view: bool = False
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    no_sync: bool = False  # batches that make no update exchange no gradients
    reshard_after_forward: bool = True
    shard_unit: str = "blocks"
    length_bucketing: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a norm that is not above 0: PyTorch would reverse the gradients' direction."""
        norm = self.clip_norm
        if norm is not None and (isinstance(norm, bool) or not isinstance(norm, int | float) or not norm > 0):
            raise ValueError(f"clip_grad={norm!r} is not a norm to clip gradients to: give a number above 0, or None")

    @property
    def device_type(self) -> str:
        """The type of the device: ``cuda`` or ``cpu``."""
        return self.device.partition(":")[0]

    @property
    def compiles_with(self) -> str:
        """The mode of torch.compile for the model; ``none`` if the model is not compiled."""
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
        """The grad mode of inference. Freezing needs ``no_grad``: constants are folded only without gradients."""
        return "no_grad" if self.freezing and self.grad_mode in ("grad", "caller") else self.grad_mode

    @property
    def scales_gradients(self) -> bool:
        """Whether training needs a gradient scaler."""
        return self.mode == "train" and self.autocast == "float16"
