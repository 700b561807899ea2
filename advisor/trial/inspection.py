"""Inspection: the facts about a loaded workload that recipes look at. Classes are told by inheritance, not by name."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from advisor.machine.device import backend_of
from advisor.machine.host import usable_cores
from advisor.recipe.rebuild import expected_state_bytes, implementations_of, optimizer_implementation, resizing_problem
from advisor.records import LoaderFacts, Mode, OptimizerFacts, Value, WorkloadFacts
from advisor.step import (
    checkpointing,
    conv_bias,
    fold_norm,
    generation,
    inplace,
    padding,
    pointwise,
    training_cache,
)
from advisor.step.batch import tensors_of
from advisor.step.batched_reads import with_batched_reads
from advisor.step.blocks import blocks_to_compile, repeated_blocks, shape_of
from advisor.step.compile import Models
from advisor.step.loaders import READ_AHEAD, hears_of_epochs, keeps_position, length_of, loader_with
from advisor.step.optimizer import optimizers_in
from advisor.step.optimizer_options import torch_class
from advisor.step.reached import divides_samples
from advisor.step.tracing import CannotTraceError
from advisor.step.transforms import names_of_moved
from advisor.step.wrappers import as_prepared
from advisor.target.entrypoint import one_line
from advisor.target.loop import GivenBatches, Loop, describe
from advisor.trial.measurement.data_prints import pickle_problem, pinning_problem
from advisor.trial.measurement.draws import count_problem, state_problem

_TRACING_LIMIT_S = 5.0
_LOOKED_UP = (nn.Embedding, nn.EmbeddingBag)
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


def inspect_loop(loop: Loop, device: torch.device, batches: Sequence[Any], *, loss_form: str = "") -> WorkloadFacts:
    """The facts of a loop whose model is on ``device``; ``batches`` are its first ones, at least one."""
    target_batch = batches[0]
    fusable_chains, fusing_problem = _traced(pointwise.fusable_chains, loop.model)
    biased_pairs, folding_pairs, pairs_problem = _norm_pairs(loop)
    inplace_activations, tracing_problem = _traced(lambda *a: len(inplace.inplace_sites(*a)), loop.model)
    in_place = bool(inplace.activations_in_place(loop.model))
    parameters = list(loop.model.parameters())
    trainable = [p for p in parameters if p.requires_grad]
    own = backend_of(device).identity()
    return WorkloadFacts(
        mode=loop.mode,
        device=str(device),
        device_name=own.name,
        device_uuid=own.uuid,
        capability=own.capability,
        matrix_types=own.matrix_types,
        device_memory_bytes=own.memory_bytes,
        model=_name_of(loop.model),
        parameters=sum(p.numel() for p in parameters),
        trainable_parameters=sum(p.numel() for p in trainable),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        parameter_tensors=len(parameters),
        parameter_dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        families=_families(loop.model),
        batch_size=loop.batch_size,
        batch_text=describe(target_batch) if [*tensors_of(target_batch)] else "made within the step",
        resizable_batch=_resizable(loop),
        resizing_problem="" if loop.loader is not None or loop.make_batch else resizing_problem(loop.data),
        data_kind=_data_kind(loop),
        loss=loop.loss_text,
        optimizer=None if loop.optimizer is None else _optimizer_facts(loop.optimizer, loop.model),
        loader=_loader_facts(loop, target_batch, on_device=backend_of(device).has_memory),
        threads=torch.get_num_threads(),
        usable_cores=usable_cores(),
        repeated_blocks=block_counts(loop.model),
        block_shapes=block_shapes(loop.model),
        parameter_shapes=len({p.shape for p in parameters}),
        varying_shapes=len({tuple(tensor.shape for tensor in tensors_of(batch)) for batch in batches}) > 1,
        fusable_chains=fusable_chains,
        fusing_problem=fusing_problem,
        inplace_activations=inplace_activations,
        tracing_problem=tracing_problem,
        clip_norm=loop.clip_norm,
        biased_conv_norm_pairs=biased_pairs,
        conv_norm_pairs=folding_pairs,
        norm_pairs_problem=pairs_problem,
        paddable_outputs=_paddable_outputs(loop.model),
        # Where some activations could still be switched, the setting counts as off.
        current={"model.inplace_activations": in_place and not inplace_activations, **current_settings(loop)},
        notes=tuple(loop.notes),
        linear_shapes=_linear_shapes(loop.model),
        own_step=loop.step is not None,
        loss_form=loss_form,
        capture_problem=getattr(loop.step, "capture_problem", ""),
        spread_already=loop.spread_already,
        torchscript=isinstance(loop.model, torch.jit.ScriptModule),
        generated_tokens=_generated_tokens(loop),
        casts_inside=str(getattr(loop.step, "casts", "none")),
        trainer=loop.trainer,
    )


def _data_kind(loop: Loop) -> str:
    if loop.loader is not None:
        return "loader"
    return "callable" if loop.make_batch else "batch"


def block_counts(model: nn.Module) -> tuple[tuple[str, int], ...]:
    """Class name and number of the blocks that a model repeats, in the order of :func:`repeated_blocks`."""
    return tuple((type(group[0][1]).__name__, len(group)) for group in repeated_blocks(model))


def block_shapes(model: nn.Module) -> int:
    """The number of shapes among the repeated blocks that would be compiled by themselves."""
    return len({shape_of(block) for block in blocks_to_compile(model)})


def _generated_tokens(loop: Loop) -> int | None:
    """The tokens that a step generates for each sample; 0 for a number that is not known, None for no text at all."""
    if loop.step is None or loop.mode is not Mode.INFER or not hasattr(loop.model, "generation_config"):
        return None
    return int(getattr(loop.step, "new_tokens", 0))


def _name_of(model: nn.Module) -> str:
    return " + ".join(type(as_prepared(part)).__name__ for part in (model if isinstance(model, Models) else [model]))


def current_settings(loop: Loop) -> dict[str, Value]:
    """The settings as the user has them: read off the objects and the global flags, overridden by the declared ones.

    Batch size and threads are facts of their own: they have no value that means "off".
    """
    current: dict[str, Value] = {
        "precision.float32_matmul": _float32_matmul(),
        "precision.weights": _weights(loop.model),
        "precision.bf16_reduction": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "attention.backend": _attention_backend(),
        "backends.deterministic": torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic,
        "cpu.flush_denormal": _flushes_denormals(),
        "backends.cudnn_benchmark": torch.backends.cudnn.benchmark,
        "model.memory_format": _memory_format(loop.model),
        "memory.activation_checkpointing": _checkpointing(loop.model),
        "debug.switches": _debug_switch(),
        "generation.cache": generation.cache_of(loop.model),
        **_from_environment(),
    }
    if loop.loader is not None:
        current["data.num_workers"] = loop.loader.num_workers
        current["data.pin_memory"] = bool(loop.loader.pin_memory)
        current["data.persistent_workers"] = bool(loop.loader.persistent_workers)
        current["data.prefetch_factor"] = loop.loader.prefetch_factor or 2
        if loop.loader.multiprocessing_context is not None:
            current["data.multiprocessing_context"] = loop.loader.multiprocessing_context.get_start_method()
    if loop.mode is Mode.TRAIN and (decoders := training_cache.decoders(loop.model)):
        current["model.use_cache"] = any(map(training_cache.says_cache, decoders))
    if loop.optimizer is not None:
        current["optimizer.implementation"] = optimizer_implementation(loop.optimizer)
    return {**current, **loop.current}


def _from_environment() -> dict[str, Value]:
    """The settings that variables of the environment decided before this process started."""
    preloaded = os.environ.get("LD_PRELOAD", "")
    allocators = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get("PYTORCH_ALLOC_CONF", "")
    words = {"expandable_segments:True": "expandable_segments", "max_split_size": "max_split_size"}
    words["backend:cudaMallocAsync"] = "cuda_async"
    return {
        "memory.allocator": next((value for word, value in words.items() if word in allocators), "default"),
        "cpu.allocator": next((name for name in ("tcmalloc", "jemalloc") if name in preloaded), "malloc"),
        "cpu.openmp": "iomp" if "libiomp5" in preloaded else "bind" if "OMP_PROC_BIND" in os.environ else "default",
    }


def _traced(count: Callable[[nn.Module, float], int], model: nn.Module) -> tuple[int, str]:
    """A number that tracing a model gives, or 0 with the reason why it cannot be traced."""
    try:
        return count(model, _TRACING_LIMIT_S), ""
    except CannotTraceError as error:
        return 0, str(error)


def _paddable_outputs(model: nn.Module) -> tuple[tuple[int, int, int], ...]:
    """Multiple, layers and widest output for each multiple that would pad layers, and not to the same sizes."""
    found: dict[tuple[int, ...], tuple[int, int, int]] = {}
    for multiple in (8, 64):
        outputs = [layer.out_features for layer in padding.layers_to_pad(model, multiple)]
        if sizes := tuple(padding.padded_size(size, multiple) for size in outputs):
            found.setdefault(sizes, (multiple, len(outputs), max(outputs)))
    return tuple(found.values())


def _norm_pairs(loop: Loop) -> tuple[int, int, str]:
    """Convolutions whose bias a norm cancels and norms to fold, or the reason why the model cannot be traced."""
    data, limit_s, trained = loop.make_batch or loop.data, _TRACING_LIMIT_S / 2, loop.mode is Mode.TRAIN
    try:
        biases = conv_bias.removable_biases(loop.model, trained=trained, data=data, limit_s=limit_s)
        folds = [] if trained else fold_norm.foldable_pairs(loop.model, data, limit_s)
    except CannotTraceError as error:
        return 0, 0, str(error)
    except Exception as error:  # a model may hold anything; what cannot be looked through is measured all the same
        return 0, 0, f"cannot be looked through for norms ({one_line(error)})"
    return len(biases), len(folds), ""


def versions() -> dict[str, str]:
    """The versions of PyTorch, CUDA, the driver and other packages."""
    found = {"python": sys.version.split()[0], "torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    if torch.cuda.is_available() and (cudnn := torch.backends.cudnn.version()):
        found["cudnn"] = str(cudnn)
    if "torchvision" in sys.modules:
        found["torchvision"] = str(sys.modules["torchvision"].__version__)
    return found


def _float32_matmul() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        # The user set the newer per-backend switches; the older one then refuses to answer.
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def _weights(model: nn.Module) -> str:
    """The half-precision type that all floating-point parameters have, or ``float32``."""
    types = {str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point()}
    return next(iter(types)) if types in ({"bfloat16"}, {"float16"}) else "float32"


def _attention_backend() -> str:
    """The one attention kernel that is permitted, or ``auto`` when PyTorch may choose among several."""
    flags = torch.backends.cuda
    permitted = {
        "flash": flags.flash_sdp_enabled(),
        "cudnn": flags.cudnn_sdp_enabled(),
        "efficient": flags.mem_efficient_sdp_enabled(),
        "math": flags.math_sdp_enabled(),
    }
    names = [name for name, is_permitted in permitted.items() if is_permitted]
    return names[0] if len(names) == 1 else "auto"


def _flushes_denormals() -> bool:
    """Whether this thread's arithmetic gives zero in place of a number below the smallest normal one."""
    return bool((torch.full((1,), 1e-30) * 1e-10).item() == 0)


def _linear_shapes(model: nn.Module) -> tuple[tuple[int, int, int], ...]:
    """Inputs, outputs and count of each size of linear layer, the largest first."""
    sizes = Counter((m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear))
    ordered = sorted(sizes.items(), key=lambda item: item[0][0] * item[0][1], reverse=True)
    return tuple((inputs, outputs, count) for (inputs, outputs), count in ordered)


def _checkpointing(model: nn.Module) -> str:
    """Whether the model keeps its activations, as the recipe checkpointing has it."""
    from torch._functorch import config

    if checkpointing.checkpoints_itself(model):
        return "blocks"
    share = config.activation_memory_budget
    return f"budget-{share:g}" if 0 < share < 1 else "none"


def _debug_switch() -> str:
    """The debugging aid that is on, by the names of the recipe debug_off."""
    if torch.is_anomaly_enabled():
        return "anomaly"
    if not torch._C._autograd._profiler_enabled():
        return "none"
    return "nvtx" if torch._C._autograd._profiler_type().name == "NVTX" else "profiler"


def _families(model: nn.Module) -> dict[str, int]:
    counts = {
        family: sum(isinstance(module, classes) for module in model.modules()) for family, classes in _FAMILIES.items()
    }
    counts["forked"] = sum(map(_forks, model.modules()))
    return {family: count for family, count in counts.items() if count}


def _forks(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule) and "prim::fork" in str(getattr(module, "inlined_graph", ""))


def _memory_format(model: nn.Module) -> str:
    """``channels_last`` (or ``_3d``) when every convolution's weight has that layout and not the default one."""
    for rank, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        weights = [p for p in model.parameters() if p.dim() == rank and not p.is_contiguous()]
        if weights and all(w.is_contiguous(memory_format=layout) for w in weights):
            return str(layout).removeprefix("torch.")
    return "contiguous"


def _resizable(loop: Loop) -> bool:
    if loop.loader is None:
        return loop.batch_size is not None and (loop.make_batch is not None or not resizing_problem(loop.data))
    # A custom batch sampler decides the batch size itself; its batches leave the loader's batch_size None.
    return loop.loader.batch_size is not None


def _tried(change: Callable[[Any], Any], loader: Any, ways: str) -> tuple[Any, str]:
    """The result of a change to a loader, or None with the reason that it is refused.

    ``ways`` are the ways in which samples would be compared.
    """
    try:
        return change(loader), ""
    except ValueError as error:
        return None, str(error)
    except Exception as error:  # it runs the user's dataset and collate function, which may raise anything
        return None, f"its samples cannot be compared {ways} ({type(error).__name__}: {error})"


def _optimizer_facts(optimizer: Any, model: nn.Module) -> OptimizerFacts:
    each = optimizers_in(optimizer)
    sparse = {layer.weight for layer in model.modules() if isinstance(layer, _LOOKED_UP) and layer.sparse}
    offered = [implementations_of(one, sparse) for one in each]
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


def _copy_problem(loader: torch.utils.data.DataLoader[Any]) -> str:
    """The reason that a loader cannot be copied with other options; empty where it can."""
    if isinstance(loader, GivenBatches):
        return f"the batches come from {loader.made_by}, which is no DataLoader"
    try:
        loader_with(loader)
    except ValueError as error:
        return str(error)
    return ""


def _problem_of_workers(loader: torch.utils.data.DataLoader[Any]) -> str:
    """The reason why the first workers of a loader would change more than its speed; empty for none."""
    return READ_AHEAD if keeps_position(loader) else state_problem(loader) or count_problem(loader)


def _loader_facts(loop: Loop, batch: Any, *, on_device: bool) -> LoaderFacts | None:
    loader = loop.loader
    if loader is None:
        return None
    iterable = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    movable, problem = _tried(names_of_moved, loader, "with and without them") if on_device else (None, "")
    return LoaderFacts(
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        prefetch_factor=loader.prefetch_factor,
        length=length_of(loader),
        iterable_dataset=iterable,
        custom_batch_sampler=loader.batch_size is None and loader.batch_sampler is not None,
        drop_last=bool(loader.drop_last),
        pickle_problem=pickle_problem(loader),
        movable_transforms=tuple(movable or ()),
        transforms_problem=problem,
        copy_problem=_copy_problem(loader),
        pinning_problem=pinning_problem(batch),
        divides_samples=iterable and divides_samples(loader),
        hears_of_epochs=hears_of_epochs(loader.dataset),
        state_problem="" if loader.num_workers else _problem_of_workers(loader),
        batched_reads_problem=_tried(with_batched_reads, loader, "one by one and together")[1],
    )
