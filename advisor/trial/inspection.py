"""Inspection: the facts about a loaded workload for the recipes. Classes are recognised by inheritance, not by name."""

import math
import os
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import IterableDataset

from advisor.errors import RefusedError
from advisor.figures.formatting import format_percent
from advisor.inlined import checkpointing, conv_bias, fold_norm, padding, pairs, training_cache
from advisor.inlined.blocks import blocks_to_compile, repeated_blocks, shape_of
from advisor.inlined.chunked_loss import large_head
from advisor.inlined.decoding import decoded
from advisor.inlined.lengths import PadsToMultiple
from advisor.inlined.masks import without_empty_masks
from advisor.machine.device import backend_of
from advisor.records import LoaderFacts, Mode, OptimizerFacts, Value, WorkloadFacts
from advisor.step.batch import map_tensors, tensors_of
from advisor.step.compile import Models, as_prepared
from advisor.step.device_loader import without_last_transforms
from advisor.step.loader import length_of, on_device_problem, rebuild, workers_problem
from advisor.step.optimizer import optimizer_implementation, optimizers_in, sparse_parameters, torch_class, why_not
from advisor.step.step import InferStep, OwnStep, TrainStep, evaluating
from advisor.trial.profile.ceilings import float32_matmul
from advisor.workloads.loop import GivenBatches, Loop, describe, resizing_problem

# Relative changes of a loss or of outputs up to these are rounding of sums: in float32, in half precision.
_PADDING_ROUNDS, _PADDING_ROUNDS_HALF = 2e-4, 1e-2
_TINY = 1e-30
_SINGLE_BYTES = 4
_FAMILIES: dict[str, tuple[type[nn.Module], ...]] = {
    "conv1d": (nn.Conv1d, nn.ConvTranspose1d),
    "conv2d": (nn.Conv2d, nn.ConvTranspose2d),
    "conv3d": (nn.Conv3d, nn.ConvTranspose3d),
    "linear": (nn.Linear, nn.Bilinear),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "batch_norm": (nn.modules.batchnorm._BatchNorm,),
    "layer_norm": (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
    "dropout": (nn.modules.dropout._DropoutNd,),
    "attention": (nn.MultiheadAttention,),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
}


def inspect_loop(
    loop: Loop, device: torch.device, batches: Sequence[Any], *, loss_form: str = "", step: Any = None
) -> WorkloadFacts:
    """The facts of a loop whose model is on ``device``; ``batches`` are its first batches, at least one."""
    target_batch = batches[0]
    models = list(loop.model) if isinstance(loop.model, Models) else [loop.model]
    parameters = list(loop.model.parameters())
    own = backend_of(device).identity()
    in_a_row = pairs.layers_in_a_row(loop.model)
    modules = list(loop.model.modules())
    families = {name: sum(isinstance(one, classes) for one in modules) for name, classes in _FAMILIES.items()}
    linear = Counter((one.in_features, one.out_features) for one in modules if isinstance(one, nn.Linear))
    fixed = "" if loop.loader is not None or loop.make_batch else resizing_problem(loop.data)
    generates = loop.mode is Mode.INFER and loop.step is not None and hasattr(loop.model, "generation_config")
    return WorkloadFacts(
        mode=loop.mode,
        device=str(device),
        device_name=own.name,
        device_uuid=own.uuid,
        capability=own.capability,
        device_memory_bytes=own.memory_bytes,
        model=" + ".join(type(as_prepared(part)).__name__ for part in models),
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        parameter_tensors=len(parameters),
        parameter_dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        families={name: count for name, count in families.items() if count},
        batch_size=loop.batch_size,
        batch_text=describe(target_batch) if [*tensors_of(target_batch)] else "made within the step",
        resizing_problem=fixed,
        data_kind="loader" if loop.loader is not None else "callable" if loop.make_batch else "batch",
        loss=loop.loss_text,
        optimizer=None if loop.optimizer is None else _optimizer_facts(loop.optimizer, loop.model),
        loader=_loader_facts(loop, batches, step, on_device=backend_of(device).has_memory),
        threads=torch.get_num_threads(),
        repeated_blocks=tuple((type(group[0][1]).__name__, len(group)) for group in repeated_blocks(loop.model)),
        block_shapes=len({shape_of(block) for block in blocks_to_compile(loop.model)}),
        parameter_shapes=len({p.shape for p in parameters}),
        empty_masks=min(len([*tensors_of(one)]) - len([*tensors_of(without_empty_masks(one))]) for one in batches),
        varying_shapes=len({tuple(tensor.shape for tensor in tensors_of(batch)) for batch in batches}) > 1,
        clip_norm=loop.clip_grad,
        biased_conv_norm_pairs=len(conv_bias.removable_biases(loop.model, in_a_row)),
        conv_norm_pairs=sum(fold_norm.is_foldable(*pair) for pair in in_a_row) if loop.mode is Mode.INFER else 0,
        paddable_outputs=_paddable_outputs(loop.model),
        large_head=head.out_features if (head := large_head(loop.model)) else 0,
        current=current_settings(loop),
        notes=tuple(loop.notes),
        linear_shapes=tuple((*size, linear[size]) for size in sorted(linear, key=math.prod, reverse=True)),
        models=len(models),
        own_step=loop.step is not None,
        loss_form=loss_form,
        capture_problem=getattr(loop.step, "capture_problem", ""),
        ranks=distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1,
        spread_already=loop.spread_already,
        torchscript=isinstance(loop.model, torch.jit.ScriptModule),
        generated_tokens=int(getattr(loop.step, "new_tokens", 0)) if generates else None,
        casts_inside=str(getattr(loop.step, "casts", "none")),
        trainer=loop.trainer,
        places=loop.places,
    )


def current_settings(loop: Loop) -> dict[str, Value]:
    """The user's present settings: read from the objects and the global flags; declared settings override them.

    Batch size and threads are not included, since they have no value that means "off".
    """
    # The two allocators were chosen by these environment variables before the process started.
    preloaded = os.environ.get("LD_PRELOAD", "")
    allocators = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get("PYTORCH_ALLOC_CONF", "")
    types = {str(p.dtype).removeprefix("torch.") for p in loop.model.parameters() if p.is_floating_point()}
    current: dict[str, Value] = {
        "precision.float32_matmul": float32_matmul(),
        "precision.weights": next(iter(types)) if types in ({"bfloat16"}, {"float16"}) else "float32",
        "backends.deterministic": torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic,
        "backends.cudnn_benchmark": torch.backends.cudnn.benchmark,
        "model.memory_format": _memory_format(loop.model),
        "memory.activation_checkpointing": _checkpointing(loop.model),
        "debug.switches": _debug_switch(),
        "memory.allocator": "expandable_segments" if "expandable_segments:True" in allocators else "default",
        "cpu.allocator": next((name for name in ("tcmalloc", "jemalloc") if name in preloaded), "malloc"),
    }
    if loop.loader is not None:
        current["data.num_workers"] = loop.loader.num_workers
        current["data.pin_memory"] = bool(loop.loader.pin_memory)
        current["data.persistent_workers"] = bool(loop.loader.persistent_workers)
        current["data.prefetch_factor"] = loop.loader.prefetch_factor or 2
    if loop.mode is Mode.TRAIN and (decoders := training_cache.decoders(loop.model)):
        current["model.use_cache"] = any(part.config.use_cache for part in decoders)
    if loop.optimizer is not None:
        current["optimizer.implementation"] = optimizer_implementation(loop.optimizer)
    return {**current, **loop.current}


def _paddable_outputs(model: nn.Module) -> tuple[tuple[int, int, int], ...]:
    """For each multiple that would pad layers to new sizes: the multiple, the number of layers, the widest output."""
    found: dict[tuple[int, ...], tuple[int, int, int]] = {}
    for multiple in (8, 64):
        outputs = [layer.out_features for layer in padding.layers_to_pad(model, multiple)]
        if sizes := tuple(padding.padded_size(size, multiple) for size in outputs):
            found.setdefault(sizes, (multiple, len(outputs), max(outputs)))
    return tuple(found.values())


def versions() -> dict[str, str]:
    """The versions of Python, PyTorch, CUDA and torchvision."""
    found = {"python": sys.version.split()[0], "torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    if torch.cuda.is_available() and (cudnn := torch.backends.cudnn.version()):
        found["cudnn"] = str(cudnn)
    if "torchvision" in sys.modules:
        found["torchvision"] = str(sys.modules["torchvision"].__version__)
    return found


def _checkpointing(model: nn.Module) -> str:
    """Whether the model keeps its activations, as a value of the recipe checkpointing."""
    from torch._functorch import config

    if checkpointing.checkpoints_itself(model):
        return "blocks"
    share = config.activation_memory_budget
    return f"budget-{share:g}" if 0 < share < 1 else "none"


def _debug_switch() -> str:
    """The debugging aid that is on, by its name in the recipe debug_off."""
    if torch.is_anomaly_enabled():
        return "anomaly"
    if not torch._C._autograd._profiler_enabled():
        return "none"
    return "nvtx" if torch._C._autograd._profiler_type().name == "NVTX" else "profiler"


def _memory_format(model: nn.Module) -> str:
    """``channels_last`` (or ``_3d``) if every convolution's weight has that layout and not the default one."""
    for rank, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        weights = [p for p in model.parameters() if p.dim() == rank and not p.is_contiguous()]
        if weights and all(w.is_contiguous(memory_format=layout) for w in weights):
            return str(layout).removeprefix("torch.")
    return "contiguous"


def expected_state_bytes(optimizer: Any) -> int:
    """The bytes of an optimizer's state after its first step, from the number of moments that its options imply."""
    options = optimizer.defaults
    moments = (len(options.get("betas") or ()) or bool(options.get("momentum"))) + bool(options.get("amsgrad"))
    parameters = (one for group in optimizer.param_groups for one in group["params"] if one.requires_grad)
    return sum(moments * parameter.nbytes for parameter in parameters)


def implementations_of(optimizer: torch.optim.Optimizer, sparse: Collection[torch.Tensor] = ()) -> tuple[str, ...]:
    """Return those of ``for-loop``, ``foreach`` and ``fused`` that can update parameters, some of them ``sparse``."""
    off: dict[str, Any] = {name: False for name in ("foreach", "fused") if name in optimizer.defaults}
    return ("for-loop", *(name for name in off if not why_not(optimizer, {**off, name: True}, sparse)))


def _optimizer_facts(optimizer: Any, model: nn.Module) -> OptimizerFacts:
    each = optimizers_in(optimizer)
    offered = [implementations_of(one, sparse_parameters(model)) for one in each]
    return OptimizerFacts(
        name=" + ".join(type(one).__name__ for one in each),
        implementation=optimizer_implementation(optimizer),
        implementations=tuple(name for name in offered[0] if all(name in others for others in offered)),
        capturable=all("capturable" in one.defaults and torch_class(one) is not None for one in each),
        tensors=sum(len(group["params"]) for group in optimizer.param_groups),
        state_bytes=sum(map(expected_state_bytes, each)),
        builtin=all(type(one).__module__.startswith("torch.optim") for one in each),
        made_steps=any(getattr(one, "state", None) for one in each),
    )


def padding_problem(step: TrainStep | InferStep, batches: Sequence[Any], pads: PadsToMultiple) -> str:
    """The reason not to pad a model's batches further, by ``pads``: its loss, or in inference its output, changes.

    The comparison is in evaluation mode, since dropout can spread the losses of a trial as far. Empty if only rounding
    differs, if no batch is shorter, or if the model fails, which its first step will report.
    """
    if isinstance(step, OwnStep):
        return "the step is your own: perf-advisor cannot see whether its model masks padding"

    def size(batch: Any) -> int:
        return sum(tensor.numel() for tensor in tensors_of(batch))

    pairs = [(batch, pads(map_tensors(torch.Tensor.clone, batch))) for batch in batches]
    pair = max(pairs, key=lambda two: size(two[1]) - size(two[0]))
    results: list[torch.Tensor] = []
    try:
        with torch.no_grad(), torch.random.fork_rng(), evaluating(step.model):
            for batch in map(step.to_device, pair):
                output = step.forward(batch)
                parts = tensors_of(step.loss(output, batch) if isinstance(step, TrainStep) else output)
                results.append(torch.cat([part.double().flatten() for part in parts]))
    except Exception:  # anything that the user's model raises
        return "the model does not take batches that are padded further" if results else ""
    short, long = results
    if short.shape != long.shape:
        return "with padding the model's outputs become longer"
    weights = step.model.parameters()
    is_half = step.plan.autocast != "none" or any(one.dtype.itemsize < _SINGLE_BYTES for one in weights)
    changed = float((long - short).norm() / short.norm().clamp(min=_TINY))
    if changed < (_PADDING_ROUNDS_HALF if is_half else _PADDING_ROUNDS):
        return ""
    return f"the model takes padding for data: with more of it results change by {format_percent(changed, digits=2)}"


def _loader_facts(loop: Loop, batches: Sequence[Any], step: Any, *, on_device: bool) -> LoaderFacts | None:
    loader = loop.loader
    if loader is None:
        return None
    moved = without_last_transforms(loader.dataset)[1] if on_device else []
    problem = ""
    if isinstance(loader, GivenBatches):
        problem = f"the batches come from {loader.made_by}, which is not a DataLoader"
    else:
        try:
            rebuild(loader)
        except RefusedError as error:
            problem = str(error)
    pads = PadsToMultiple(lambda batch: batch, 1)
    pads.learn(batches)
    pads.multiple = max(1, pads.longest)
    return LoaderFacts(
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        prefetch_factor=loader.prefetch_factor,
        length=length_of(loader),
        iterable_dataset=isinstance(loader.dataset, IterableDataset),
        custom_batch_sampler=loader.batch_size is None and loader.batch_sampler is not None,
        movable_transforms=tuple(type(transform).__name__ for transform in moved),
        copy_problem=problem,
        workers_problem=workers_problem(loader),
        on_device_problem=on_device_problem(loader),
        longest=pads.longest,
        padding_problem=padding_problem(step, batches, pads) if pads.longest and step is not None else "",
        decoding_problem=_decoding_problem(loader.dataset),
    )


def _decoding_problem(dataset: Any) -> str:
    """The reason that a dataset cannot decode its files in another way; empty if there is none."""
    try:
        decoded(dataset, "reduced")
    except ValueError as error:
        return str(error)
    except Exception as error:  # anything that a user's dataset raises when it is called or copied
        return f"the dataset cannot be copied: {type(error).__name__}"
    return ""
