"""An exported file, loaded and applied to the target's own loop, and that loop timed; and the file of a compiled model.

Runs in a trial process of its own, like the loop without the file that it is compared with.
"""

import contextlib
import inspect
import itertools
import time
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from advisor.errors import TargetError
from advisor.machine.device import backend_of
from advisor.recipe.catalog import Catalog
from advisor.recipe.plan import StepPlan
from advisor.recipe.settings import Settings
from advisor.records import Block, Mode, Outcome, TrialResult, TrialSpec
from advisor.step.batch import mover, splitter, tensors_of
from advisor.step.compile import Models
from advisor.step.device_loader import is_loader
from advisor.step.loader import length_of
from advisor.step.loss import LossError, default_loss
from advisor.step.optimizer import optimizers_in
from advisor.step.step import Step, loss_of_own, mover_of
from advisor.step.tuning import Tuning
from advisor.trial.measurement.clock import StepClock, batch_samples, measure, warm_up
from advisor.trial.measurement.draws import Feed
from advisor.trial.measurement.probe import sample_of
from advisor.trial.timed_loop import data_of
from advisor.workloads.loop import Loop

COMPILED_MODEL, COMPILE_CACHE = ".pt2", ".cache"
# The first steps, in which code is compiled, kernels are chosen and a graph is captured. Count.
_FIRST_STEPS = 6
# First losses of a training that are compared: a count, and the seconds after which slow steps end.
_LOSSES, _LOSSES_S = 20, 3.0


def verified_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """Time the user's loop: with the file of ``spec.export_path`` applied, or as it is where that is empty."""
    started = time.perf_counter()
    step, data = applied_step(loop, device, catalog, spec)
    prepare_s = time.perf_counter() - started
    size = spec.settings.get("data.batch_size") if spec.export_path else None
    batch_size = int(size) if isinstance(size, int) and size else loop.batch_size
    compiled_for = batch_size if spec.export_path.endswith(COMPILED_MODEL) else None
    feed = Feed(data if is_loader(loop.data) else mover(device)(data))

    def next_batch() -> Any:
        batch = feed.next()
        while compiled_for is not None and batch_samples(batch, compiled_for) != compiled_for:
            batch = feed.next()
        return batch

    first = next_batch()
    last = step(first)
    if spec.steps:
        return _curve(lambda: step(next_batch()), last, loop, spec.steps)
    # The next epoch may have another order of samples, and a gradient scaler skips some of the first updates.
    epoch = length_of(loop.loader) if loop.loader is not None else None
    compares = loop.mode is Mode.TRAIN and spec.settings.get("precision.autocast") != "float16"
    most = min(_LOSSES, (epoch or _LOSSES + 1) - 1) if compares else 0
    losses = tuple(_first_losses(lambda: step(next_batch()), most))
    # With losses the first batch: those of other samples say nothing.
    outputs = sample_of(first) if losses else () if loop.mode is Mode.TRAIN else sample_of(last)

    def run_steps(steps: int) -> int:
        nonlocal last
        samples = 0
        for _ in range(steps):
            batch = next_batch()
            last = step(batch)
            samples += batch_samples(batch, batch_size or 1)
        return samples

    clock = StepClock(device, run_steps, feed.cycle)
    clock.run(_FIRST_STEPS)
    warm = warm_up(clock, limit_s=min(spec.warmup_limit_s, 2 * spec.measure_s), earlier=_FIRST_STEPS)
    blocks = measure(clock, warm.step_s, spec.measure_s)
    if not all(bool(torch.isfinite(one).all()) for one in tensors_of(last) if one.is_floating_point()):
        raise TargetError("the loss or the output is not finite.", "Reject the setting that causes it; export again.")
    return TrialResult(
        Outcome.MEASURED,
        batch_size=batch_size,
        blocks=tuple(blocks),
        prepare_s=prepare_s,
        warmup_s=warm.seconds,
        outputs=outputs,
        losses=losses,
    )


def _first_losses(step: Callable[[], Any], most: int) -> Iterator[float]:
    """The losses of so many steps; fewer where they take long, or where a step of the user's own returns none."""
    until = time.perf_counter() + _LOSSES_S
    with contextlib.suppress(LossError):
        while most > 0 and time.perf_counter() < until:
            yield float(loss_of_own(step()))
            most -= 1


def _curve(step: Callable[[], Any], first: Any, loop: Loop, steps: int) -> TrialResult:
    """The losses of so many steps, of which the first has run."""
    if loop.mode is not Mode.TRAIN:
        raise TargetError("only a training has a loss curve.", "Have the target return a loss and an optimizer.")
    started = time.perf_counter()
    losses = (float(first), *(float(step()) for _ in range(steps - 1)))
    block = Block(steps, steps * (loop.batch_size or 1), time.perf_counter() - started)
    return TrialResult(Outcome.MEASURED, batch_size=loop.batch_size, blocks=(block,), losses=losses)


def applied_step(
    loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec
) -> tuple[Callable[[Any], Any], Any]:
    """The loop's step and data with the exported file applied, as its instructions say."""
    path = "" if spec.target.read_as else spec.export_path  # the settings are in the user's own file
    if spec.target.read_as and loop.whole_round is not None and loop.whole_round[1] is loop.data:
        return loop.whole_round
    data = data_of(loop, spec.settings) if path else loop.data
    if path.endswith(COMPILED_MODEL):
        return packaged_step(loop.model, path, device), Tuning(spec.settings, catalog).prepare(loop.model, data)[1]
    if path.endswith(".py"):
        return _by_python_file(loop, path, data)
    settings = spec.settings if path.endswith(COMPILE_CACHE) else Settings.from_file(path) if path else {}
    tuning = Tuning({**loop.current, **settings}, catalog)
    models, optimizers = _parts(loop)
    model, *others, data = tuning.prepare(*models, *optimizers, data)
    if loop.step is not None:
        return tuning.own_step(loop.step, models[0]), data
    if loop.mode is Mode.INFER:
        return tuning.infer(model), data
    loss_form = None if loop.loss is None else spec.loss_form
    return tuning.train_step(model, others[0], loop.loss, clip_grad=loop.clip_grad, loss_form=loss_form), data


def _parts(loop: Loop) -> tuple[list[nn.Module], list[Any]]:
    """The models and the optimizers that a person would prepare: several of each in a step of one's own."""
    if loop.step is not None:
        return list(loop.model) if isinstance(loop.model, Models) else [loop.model], optimizers_in(loop.optimizer)
    return [loop.model], [] if loop.mode is Mode.INFER else [loop.optimizer]


def _by_python_file(loop: Loop, path: str, data: Any) -> tuple[Callable[[Any], Any], Any]:
    """The step of an exported Python file, used as its header shows."""
    file = SourceFileLoader("perf_advisor_exported", str(Path(path).resolve()))
    module = ModuleType(file.name)
    file.exec_module(module)
    loader = data if is_loader(data) else None
    models, optimizers = _parts(loop)
    first: list[Any] = []
    for pair in itertools.zip_longest(models, optimizers[: len(models)]):
        *prepared, loader = module.prepare(*pair, loader)
        first = first or prepared
    model, optimizer = first
    if loop.step is not None:
        step = module.own_step(loop.step, model)
    elif loop.mode is Mode.INFER:
        step = module.infer_step(model)
    else:
        model.train()
        takes_loss = len(inspect.signature(module.train_step).parameters) > 2  # the model and the optimizer
        loss = [default_loss if loop.loss is None else loop.loss] if takes_loss else []
        step = module.train_step(model, optimizer, *loss)
    return step, data if loader is None else loader


# AOTInductor compiles in their place.
_COMPILING = ("compile.", "step.cuda_graph")


class _Call(nn.Module):
    """The model, called as its plan says."""

    def __init__(self, model: nn.Module, plan: StepPlan) -> None:
        super().__init__()
        self.model = model
        self._convert = mover_of(plan)
        self._contexts = Step(model, plan).contexts

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output for inputs that lie on its device."""
        args, kwargs = self._convert((args, kwargs))
        with self._contexts():
            return self.model(*args, **kwargs)


def packaged_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """Write the model to ``spec.export_path``, for batches like the first. Raises TargetError or what export does."""
    if spec.export_path.endswith(COMPILE_CACHE):
        return _cached_result(loop, device, catalog, spec)
    if loop.mode is not Mode.INFER or loop.step is not None:
        raise TargetError("only a model in inference can be compiled to a file.", "Measure it with --mode infer.")
    started = time.perf_counter()
    kept = {key: value for key, value in spec.settings.items() if not key.startswith(_COMPILING)}
    tuning = Tuning({**loop.current, **kept}, catalog)
    data = data_of(loop, spec.settings)
    model, data = tuning.prepare(loop.model, data)
    plan = tuning.infer(model).plan
    batch = mover(device)(next(iter(data)) if is_loader(data) else data)
    inputs = splitter(model, with_target=False)(batch)
    options = {"max_autotune": True} if str(spec.settings.get("compile.mode", "")).startswith("max-autotune") else {}
    with torch.no_grad():
        program = torch.export.export(_Call(model, plan).eval(), inputs.args, inputs.kwargs, strict=False)
        torch._inductor.aoti_compile_and_package(program, package_path=spec.export_path, inductor_configs=options)
    return TrialResult(Outcome.MEASURED, prepare_s=time.perf_counter() - started)


def _cached_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """Write what PyTorch compiles in the first steps to ``spec.export_path``; what is there is loaded before them."""
    path = Path(spec.export_path)
    if path.exists():
        torch.compiler.load_cache_artifacts(path.read_bytes())
    step, data = applied_step(loop, device, catalog, spec)
    feed, started = Feed(data if is_loader(loop.data) else mover(device)(data)), time.perf_counter()
    for _ in range(_FIRST_STEPS):
        step(feed.next())
    backend_of(device).synchronize()
    seconds = time.perf_counter() - started
    found = torch.compiler.save_cache_artifacts()
    if found is None:
        raise TargetError("PyTorch keeps nothing of what it compiled.", "Export the settings alone.")
    path.write_bytes(found[0])
    return TrialResult(Outcome.MEASURED, warmup_s=seconds)


def packaged_step(model: nn.Module, path: str, device: torch.device) -> Callable[[Any], Any]:
    """A step that calls the compiled file as the model would be called."""
    compiled = torch._inductor.aoti_load_package(path)
    split, move = splitter(model, with_target=False), mover(device)

    def step(batch: Any) -> Any:
        inputs = split(move(batch))
        return compiled(*inputs.args, **inputs.kwargs)

    return step
