"""The trials that run no timed loop: the reference, a score, an exported file, a compiled model.

The reference runs the probe's steps in a higher precision. Its distance from the user's own steps shows how much of a
difference is rounding, which depends on the workload.

A score is the number that the user's function gives for the model. A training first runs some steps: the same number
for every score, from the same seed and on the same batches.

An exported file is applied to the target's own loop, and that loop is timed like the loop without the file.
"""

import contextlib
import inspect
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from advisor.errors import TargetError
from advisor.machine.device import backend_of
from advisor.recipe.catalog import Catalog
from advisor.recipe.plan import StepPlan
from advisor.recipe.settings import Settings
from advisor.records import Block, Mode, Outcome, Score, TrialResult, TrialSpec
from advisor.step.batch import map_tensors, mover, splitter, tensors_of
from advisor.step.compile import Models, call_through
from advisor.step.device_loader import is_loader
from advisor.step.graph import captured
from advisor.step.loader import length_of
from advisor.step.loss import LossError, default_loss
from advisor.step.optimizer import optimizers_in
from advisor.step.step import OwnStep, Step, loss_of_own, make_step, mover_of
from advisor.step.tuning import Tuning
from advisor.trial.measurement.clock import StepClock, measure, warm_up
from advisor.trial.measurement.draws import Feed, probe_batches, seed_all
from advisor.trial.measurement.probe import probe_inference, probe_training, sample_of
from advisor.trial.timed_loop import components_of, data_of, feed_of, form_of_loss, stepper
from advisor.workloads.entrypoint import in_user_code, load_function
from advisor.workloads.loop import Loop, describe

COMPILED_MODEL, COMPILE_CACHE = ".pt2", ".cache"
_FIRST_STEPS = 6  # a count; these steps compile code, choose kernels and capture a graph
# Number of first losses of a training that are compared, and the seconds after which slow steps end.
_LOSSES, _LOSSES_S = 20, 3.0
_HALF = (torch.float16, torch.bfloat16)
_SHARE_OF_TIME = 0.4  # of the trial's time, for the steps; at most one step exceeds it; unitless


def reference_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """The losses and outputs of a loop, whose model is on ``device``, in a higher precision; no blocks.

    The precision is float64, or float32 if parameters are in half precision. Skipped, with the reason, if the steps
    draw random numbers, since those depend on the number type.
    """
    started = time.perf_counter()
    if any(tensor.is_complex() for tensor in (*loop.model.parameters(), *loop.model.buffers())):
        return TrialResult(Outcome.SKIPPED, "the model holds complex numbers")
    half = any(parameter.dtype in _HALF for parameter in loop.model.parameters())
    precision = torch.float32 if half else torch.float64
    loop.to(precision)
    torch.set_default_dtype(precision)  # for tensors that the model and the loss create
    with contextlib.suppress(RuntimeError):  # refused if the user set the newer switches
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    # Keep the user's declared settings except those that round, and compiling, which only costs time here.
    exact = {key: value for key, value in loop.current.items() if not catalog.rounding({key: value})}
    loop.current = {key: value for key, value in exact.items() if not catalog.by_key(key).expensive}
    components = components_of(loop, device, catalog, {})
    components.plan = replace(components.plan, cuda_graph=False)
    step = make_step(components, loop.loss, form=form_of_loss(loop, components, spec))
    batches = [
        map_tensors(lambda tensor: tensor.to(precision) if tensor.is_floating_point() else tensor, batch)
        for batch in probe_batches(components.data, spec.seed, components.plan)
    ]
    torch.manual_seed(spec.stream_seed)
    untouched = backend_of(device).random_states()
    probing = time.perf_counter()
    if loop.mode is Mode.TRAIN:
        limit_s = _SHARE_OF_TIME * (spec.timeout_s - (probing - started))
        probe = probe_training(step, batches, spec.stream_seed, limit_s=limit_s, fewest=1)
    else:
        probe = probe_inference(step, batches, spec.stream_seed, steps=1)
    if not all(map(torch.equal, untouched, backend_of(device).random_states())):
        return TrialResult(Outcome.SKIPPED, "the steps draw random numbers, which are others in another precision")
    return TrialResult(
        outcome=Outcome.MEASURED,
        batch_size=components.batch_size,
        losses=probe.losses,
        outputs=probe.outputs,
        measuring_s=time.perf_counter() - probing,
        notes=(str(precision).removeprefix("torch."),),
    )


def scored_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """Apply the settings, train ``spec.steps`` steps if the loop trains, and let ``spec.evaluate`` score the model."""
    evaluate = load_function(spec.evaluate, spec.target.directory)
    components = components_of(loop, device, catalog, spec.settings)
    steps = spec.steps if loop.mode is Mode.TRAIN else 0
    if steps:
        train = captured(make_step(components, loop.loss, form=form_of_loss(loop, components, spec)), required=True)
        seed_all(spec.stream_seed)
        feed = feed_of(components, spec.seed)
        for _ in range(steps):
            train(feed.next())
    model = components.model
    models = list(model) if isinstance(model, Models) else [model]
    plan = replace(components.plan, mode=Mode.INFER, grad_mode="caller")
    for each in models:  # arguments of a call are moved and cast as in the step
        if each.training:
            each.eval()
        step = OwnStep(lambda call: call[0](*call[1], **call[2]), each, plan)
        call_through(each, step)
    seed_all(spec.seed)
    with torch.no_grad(), step.contexts():  # for all of it: a function may call a part or a copy of the model
        value = in_user_code(spec.evaluate, lambda: evaluate(*models))
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor with several values, or None
        number, value = math.nan, describe(value)
    if not math.isfinite(number):
        hint = "Return one number, higher is better: an accuracy."
        raise TargetError(f"{spec.evaluate} returned {value}, no number.", hint)
    return TrialResult(Outcome.MEASURED, score=Score(number, steps))


def verified_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """Time the user's loop with the file of ``spec.export_path`` applied, or unchanged if the path is empty."""
    started = time.perf_counter()
    for parameter in loop.model.parameters() if spec.rounded else ():
        if parameter.is_floating_point() and not is_lazy(parameter):
            parameter.data.copy_(parameter.data.bfloat16())
    step, feed = applied_step(loop, device, catalog, spec)
    prepare_s = time.perf_counter() - started
    size = spec.settings.get("data.batch_size") if spec.export_path else None
    batch_size = int(size) if isinstance(size, int) and size else loop.batch_size
    if batch_size and spec.export_path.endswith(COMPILED_MODEL):
        feed.leave_out_other_sizes(batch_size)
    if spec.steps and loop.mode is not Mode.TRAIN:
        raise TargetError("only a training has a loss curve.", "Have the target return a loss and an optimizer.")
    first = feed.next()
    last = step(first)
    if spec.steps:
        started = time.perf_counter()
        curve = (float(last), *(float(step(feed.next())) for _ in range(spec.steps - 1)))
        block = Block(spec.steps, spec.steps * (loop.batch_size or 1), time.perf_counter() - started)
        return TrialResult(Outcome.MEASURED, batch_size=loop.batch_size, blocks=(block,), losses=curve)
    # The next epoch may have another order of samples, and a gradient scaler skips some of the first updates.
    epoch = length_of(loop.loader) if loop.loader is not None else None
    compares = loop.mode is Mode.TRAIN and spec.settings.get("precision.autocast") != "float16"
    most = min(_LOSSES, (epoch or _LOSSES + 1) - 1) if compares else 0
    losses, until = list[float](), time.perf_counter() + _LOSSES_S
    with contextlib.suppress(LossError):  # a user's own step may return no loss
        while len(losses) < most and time.perf_counter() < until:
            losses.append(float(loss_of_own(step(feed.next()))))
            if len(losses) < _FIRST_STEPS:  # these steps may compile code
                until = time.perf_counter() + _LOSSES_S
    # With losses, the first batch replaces the outputs: losses of other samples could not be compared.
    outputs = sample_of(first) if losses else () if loop.mode is Mode.TRAIN else sample_of(last)

    def run(batch: Any) -> None:
        nonlocal last
        last = step(batch)

    clock = StepClock(device, stepper(run, feed, batch_size or 1), feed.cycle)
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
        losses=tuple(losses),
    )


def applied_step(
    loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec
) -> tuple[Callable[[Any], Any], Feed]:
    """The loop's step with the exported file applied according to its instructions, and the feed for it."""
    path = "" if spec.target.read_as else spec.export_path  # the settings are in the user's own file
    data = data_of(loop, spec.settings) if path else loop.data
    step: Callable[[Any], Any]
    if spec.target.read_as and loop.whole_round is not None and loop.whole_round.batches is data:
        step = loop.whole_round
    elif path.endswith(COMPILED_MODEL):
        step = packaged_step(loop.model, path, device)
        data = Tuning(spec.settings, catalog).prepare(loop.model, data)[1]
    elif path.endswith(".py"):
        step, data = _by_python_file(loop, path, data)
    else:
        settings = spec.settings if path.endswith(COMPILE_CACHE) else Settings.from_file(path) if path else {}
        tuning = Tuning({**loop.current, **settings}, catalog)
        models, optimizers = _parts(loop)
        model, *others, data = tuning.prepare(*models, *optimizers, data)
        if loop.step is not None:
            step = tuning.own_step(loop.step, models[0])
        elif loop.mode is Mode.INFER:
            step = tuning.infer(model)
        else:
            form = None if loop.loss is None else spec.loss_form
            step = tuning.train_step(model, others[0], loop.loss, clip_grad=loop.clip_grad, loss_form=form)
    return step, Feed(data if is_loader(loop.data) else mover(device)(data))


def _parts(loop: Loop) -> tuple[list[nn.Module], list[Any]]:
    """The models and optimizers that a person would prepare. A user's own step may have several of each."""
    if loop.step is not None:
        return list(loop.model) if isinstance(loop.model, Models) else [loop.model], optimizers_in(loop.optimizer)
    return [loop.model], [] if loop.mode is Mode.INFER else [loop.optimizer]


def _by_python_file(loop: Loop, path: str, data: Any) -> tuple[Callable[[Any], Any], Any]:
    """The step of an exported Python file, used as the file's header shows."""
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
        takes_loss = len(inspect.signature(module.train_step).parameters) > 2  # parameters: the model and the optimizer
        loss = [default_loss if loop.loss is None else loop.loss] if takes_loss else []
        step = module.train_step(model, optimizer, *loss)
    return step, data if loader is None else loader


# The settings that AOTInductor replaces.
_COMPILING = ("compile.", "step.cuda_graph")


class _Call(nn.Module):
    """The model, called as its plan says."""

    def __init__(self, model: nn.Module, plan: StepPlan) -> None:
        super().__init__()
        self.model = model
        self._convert = mover_of(plan)
        self._contexts = Step(model, plan).contexts

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output for inputs on its device."""
        args, kwargs = self._convert((args, kwargs))
        with self._contexts():
            return self.model(*args, **kwargs)


def packaged_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """Write the model to ``spec.export_path``, for batches like the first. Raises TargetError and export's errors."""
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
    """Write the code compiled in the first steps to ``spec.export_path``. An existing file is loaded before them."""
    path = Path(spec.export_path)
    if path.exists():
        torch.compiler.load_cache_artifacts(path.read_bytes())
    step, feed = applied_step(loop, device, catalog, spec)
    started = time.perf_counter()
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
    """A step that calls the compiled file in the same way as the model."""
    compiled = torch._inductor.aoti_load_package(path)
    split, move = splitter(model, with_target=False), mover(device)

    def step(batch: Any) -> Any:
        inputs = split(move(batch))
        return compiled(*inputs.args, **inputs.kwargs)

    return step
