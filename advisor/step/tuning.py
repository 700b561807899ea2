"""Apply settings: in trials by ``apply_settings``, and in the user's own loop by the Tuning of ``advisor.load``."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from advisor.errors import RefusedError, UsageError
from advisor.figures.formatting import format_setting
from advisor.recipe import Components, Recipe, Stage
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.recipe.plan import StepPlan
from advisor.recipe.settings import Settings
from advisor.records import Mode, Value
from advisor.step import spread
from advisor.step.compile import accept_wrapped_names, as_prepared, as_written, compile_model, compiled_as, unwrapped
from advisor.step.device_loader import loop_loader
from advisor.step.graph import GraphedStep, captured
from advisor.step.loss import LossForm
from advisor.step.optimizer import Together, optimizers_in, watch_first_step
from advisor.step.step import InferStep, OwnStep, TrainStep

Refused = Callable[[Recipe, Value, RefusedError], None] | None  # gets a left-out setting, and the reason


def apply_settings(
    catalog: Catalog, components: Components, settings: Mapping[str, Value], *, refused: Refused = None
) -> None:
    """Change ``components`` (and the process's global flags) as the settings say.

    If ``refused`` is given, a setting that its recipe refuses for these objects is left out, and passed to ``refused``.
    Raises UsageError if two settings cannot be combined or a setting is unknown. Other errors of a recipe pass through.
    """
    catalog.check(settings)
    if reason := catalog.conflict(settings):
        raise UsageError(f"these settings cannot be combined: {reason}.", "Leave one of them out.")
    for recipe, value in catalog.in_order(settings):
        apply_recipe(recipe, components, value, refused)
    compile_model(components.model, components.plan)


def apply_recipe(recipe: Recipe, components: Components, value: Value, refused: Refused) -> None:
    """Apply one setting. An optimizer setting is applied to each of several optimizers."""
    several = recipe.stage is Stage.OPTIMIZER and isinstance(components.optimizer, Together)
    each = [replace(components, optimizer=one) for one in components.optimizer.optimizers] if several else [components]
    for part in each:
        try:
            recipe.apply(part, value)
        except RefusedError as error:
            if refused is None:
                raise
            refused(recipe, value, error)


class Tuning:
    """Settings for the user's own loop.

    ``prepare`` applies them to the user's objects. ``train_step`` and ``infer`` return a callable that runs one step.
    Trials use the same recipes, so your loop runs the same code that was measured.
    """

    def __init__(self, settings: Mapping[str, Value], catalog: Catalog | None = None) -> None:
        self._catalog = catalog or load_catalog()
        self.settings = self._catalog.without_removed(settings)
        self._catalog.check(self.settings)
        self._prepared: WeakKeyDictionary[nn.Module, StepPlan] = WeakKeyDictionary()
        self._has_loader = False

    @classmethod
    def from_file(cls, path: str | Path) -> Tuning:
        """Read the settings from a YAML file. Raises UsageError if it cannot be read, or contains something else."""
        return cls(Settings.from_file(path))

    def prepare(self, *objects: Any) -> Any:
        """Apply the settings to models, optimizers and DataLoaders, and return all objects in the order given.

        It works like Accelerate's ``prepare``. It takes at least one model and any number of other objects. A single
        object is returned alone, not in a tuple. Objects that no setting concerns are returned unchanged. Models and
        optimizers are changed in place and stay the same objects with their hooks, so schedulers keep working. State
        dicts keep the names and values of a plain loop. Each optimizer belongs to the model whose parameters it holds.
        With an optimizer, all models are prepared for training. The first loader is for training; other loaders keep
        their batch size. A setting that an object does not support is left out with a warning. Models stay on their
        devices. Some settings for inference change layers permanently (``model.fold_batch_norm``). Do not train a model
        that was prepared with them; build a new one.

        Settings for several GPUs apply in processes that torchrun started; elsewhere a warning says that they do not.
        There the process group is joined, and each model is moved to the GPU of its process and exchanges gradients in
        training: ``ddp`` returns it in PyTorch's DistributedDataParallel. The first loader gives each process its part
        of every batch: its batch size is for all processes together. The other loaders stay whole.
        """
        once = list({id(item): item for item in objects}.values())
        modules = [item for item in once if isinstance(item, nn.Module)]
        parts = {part for module in modules for part in module.modules() if part is not module}
        wholes = [module for module in modules if module not in parts]
        # Modules without tensors (losses) are models only if there are no others.
        models = [one for one in wholes if next(chain(one.parameters(), one.buffers()), None) is not None] or wholes
        # A wrapper (Accelerate's) is replaced by the optimizer inside it.
        bare = [(item, getattr(item, "optimizer", None)) for item in once if isinstance(item, Optimizer)]
        optimizers = list(dict.fromkeys(inner if isinstance(inner, Optimizer) else item for item, inner in bare))
        loaders = [item for item in once if isinstance(item, DataLoader)]
        if not models and (optimizers or not loaders or not self._prepared):
            raise TypeError("prepare() needs the model: tuning.prepare(model, optimizer, loader)")
        trains: dict[Any, list[nn.Module]] = {}
        for one in optimizers:
            held = {id(parameter) for group in one.param_groups for parameter in group["params"]}
            own_models = [model for model in models if not held.isdisjoint(map(id, model.parameters()))]
            trains[one] = own_models or models[:1]
            watch_first_step(one)
        plans = [] if models else list(self._prepared.values())[:1]
        back: dict[int, Any] = {}
        for model in models:
            own = [one for one in optimizers if model in trains[one]]
            components = self._prepare_model(model, own, Mode.TRAIN if optimizers else Mode.INFER)
            plans.append(components.plan)
            back[id(model)] = components.model
            if len(own) == 1:
                back.setdefault(id(own[0]), optimizers_in(components.optimizer)[0])
        for place, loader in enumerate(loaders):
            back[id(loader)], plan = self._prepare_loader(loader, plans[0], trains=bool(models) and not place)
            for model in models if not place else ():  # all steps get batches of the first loader
                key = as_prepared(back[id(model)])
                self._prepared[key] = replace(self._prepared[key], non_blocking=plan.non_blocking)
        prepared = tuple(back.get(id(item), item) for item in objects)
        return prepared[0] if len(prepared) == 1 else prepared

    def _prepare_model(self, model: nn.Module, optimizers: list[Any], mode: Mode) -> Components:
        """Prepare a model with its optimizers. For a model that is already prepared, only prepare the optimizers."""
        optimizer = Together(optimizers) if len(optimizers) > 1 else next(iter(optimizers), None)
        present = self._prepared.get(as_prepared(model))
        if present is not None and (present.mode is mode or mode is Mode.INFER):
            written = getattr(model, "_orig_mod", model) if compiled_as(model) else model
            components = Components(written, optimizer, None, present)
            self._apply_again(components, lambda recipe: recipe.stage is Stage.OPTIMIZER)
            return components
        return self._apply(model, optimizer, mode)

    def _prepare_loader(self, loader: Any, plan: StepPlan, *, trains: bool) -> tuple[Any, StepPlan]:
        """Prepare a loader. Return it with the plan for its batches. Only a loader that ``trains`` may be resized."""
        components = Components(None, None, loader, plan, loader.batch_size)
        kept = "" if trains else "data.batch_size"
        self._apply_again(components, lambda one: one.key != kept and (one.stage is Stage.DATA or "data." in one.key))
        if not self._has_loader:
            self._has_loader = True
            components.data = spread.share_of_loader(components.data, plan)
        return loop_loader(components.data, components.plan), components.plan

    def _apply_again(self, components: Components, wanted: Callable[[Recipe], object]) -> None:
        """Apply the wanted recipes' settings to further objects."""
        for recipe, value in self._catalog.in_order(self._settings_for(components, Mode(components.plan.mode))):
            if wanted(recipe):
                apply_recipe(recipe, components, value, _warn_of_refusal)

    def train_step(
        self,
        model: nn.Module,
        optimizer: Any,
        loss: Callable[..., Any] | None = None,
        *,
        clip_grad: float | None = None,
        loss_form: str | None = None,
    ) -> TrainStep | GraphedStep:
        """A callable ``step(batch) -> detached loss``. It moves the batch, and handles autocast, scaler and zero_grad.

        ``loss`` is ``loss(model, batch)`` or ``loss(output, target)``; without it, the model's own loss is used. The
        names of its parameters show the form. If they do not, it is called with output and target, unless ``loss_form``
        is ``"model_batch"``. ``clip_grad`` is the norm to which the model's gradients are clipped before the update.
        Pass the objects that ``prepare`` returned. The model is put into training mode once, now. Later your loop sets
        the mode: to validate, call ``eval()`` and ``train()``, or use the step of ``infer``, which restores the mode.

        The step's ``scaler`` is the gradient scaler of float16 training, else None. Its ``state_dict()`` holds the rest
        of a checkpoint: the scaler's state, and the number of batches accumulated so far.

        A step in a CUDA graph checks a few things before each replay, and is captured again if they changed
        (:class:`~advisor.step.graph.GraphedStep` lists them). If another value that the step reads has changed, call
        ``step.recapture()``. The step does not wait for the copy of a batch from pinned memory, so do not write to that
        memory before the device is done.
        """
        plan = self._plan_of(model)
        if plan.mode is not Mode.TRAIN:
            raise RuntimeError(
                "this model was prepared for inference: pass the optimizer too (not a wrapper of your own), "
                "`model, optimizer = tuning.prepare(model, optimizer)`, and train with the returned optimizer"
            )
        if not model.training:
            model.train()
        form = LossForm(loss_form) if loss_form else None
        return captured(TrainStep(model, optimizer, loss, replace(plan, clip_norm=clip_grad), form))

    def own_step(self, step: Callable[[Any], Any], model: nn.Module) -> OwnStep | GraphedStep:
        """Your own ``step(batch)`` with the settings around it (autocast, a CUDA graph).

        It returns the result of your step. ``model`` is one of the models that the step uses, as returned by
        ``prepare``. Settings that would change code inside the step are not applied. The step's optimizers are found in
        its variables and in the attributes of these variables. If a CUDA graph cannot hold the step, a warning says
        why, and it runs without a graph.
        """
        return captured(OwnStep(step, model, self._plan_of(model)))

    def infer(self, model: nn.Module) -> InferStep | GraphedStep:
        """A callable ``step(inputs) -> output`` for inference. It prepares the model if ``prepare`` has not.

        The step always runs in evaluation mode. A model in training mode gets its mode back after each call, layer by
        layer. Other models stay in evaluation mode. The output belongs to the caller: no later call changes it.
        """
        plan = self._prepared.get(as_prepared(model))
        if plan is None or plan.mode is not Mode.TRAIN:
            model.eval()
        if plan is None:
            components = self._apply(model, None, Mode.INFER)
        else:  # a prepared model: only the step is another
            components = Components(unwrapped(model), None, None, replace(plan, mode=Mode.INFER))
            self._apply_again(components, lambda recipe: recipe.stage is Stage.STEP and Mode.TRAIN not in recipe.modes)
        return captured(InferStep(components.model, components.plan, evaluates=True))

    def _apply(self, model: nn.Module, optimizer: Any, mode: Mode) -> Components:
        strategy = str(self.settings.get("parallel.strategy", "single")) if mode is Mode.TRAIN else "single"
        if alone := spread.why_not_spread(strategy, model):
            warnings.warn(alone, stacklevel=4)  # shows the line that calls ``prepare``
        elif strategy != "single":
            spread.join_ranks(model)
        tensor = next(chain(model.parameters(), model.buffers()), None)
        plan = StepPlan(mode=mode, device="cpu" if tensor is None else str(tensor.device), grad_mode="caller")
        own = compiled_as(model)
        written = as_written(model) if own else model
        if written is not model:
            written.register_load_state_dict_pre_hook(accept_wrapped_names)
        components = Components(written, optimizer, None, plan)
        # Like in a trial, the user's own torch.compile is a setting too, unless the settings have their own.
        settings = Settings({**(own or {}), **self._settings_for(components, mode)})
        variables = self._catalog.environment(settings).items()
        if missing := {name: text for name, text in variables if text not in os.environ.get(name, "")}:
            command = " ".join(f"{name}={shlex.quote(text)}" for name, text in missing.items())
            text = f"some settings need environment variables at the start: run your script as `{command} python ...`"
            warnings.warn(text, stacklevel=4)
        apply_settings(self._catalog, components, settings, refused=_warn_of_refusal)
        if alone:
            components.plan = replace(components.plan, strategy="single")
        elif strategy != "single":
            components.model = spread.spread_model(components.model, components.optimizer, components.plan)
        self._prepared[as_prepared(components.model)] = components.plan
        return components

    def _settings_for(self, components: Components, mode: Mode) -> Settings:
        """The settings for the given objects: no loader settings without a loader, no GPU settings on a CPU."""
        parts = {"data.": components.data, "optimizer.": components.optimizer}
        absent = tuple(prefix for prefix, part in parts.items() if part is None)
        fitting = [one for one in self._catalog if mode in one.modes and components.plan.device_type in one.devices]
        keys = {recipe.key for recipe in fitting if not recipe.key.startswith(absent)}
        return self.settings.filtered(keys.__contains__)

    def _plan_of(self, model: nn.Module) -> StepPlan:
        plan = self._prepared.get(as_prepared(model))
        if plan is None:
            raise RuntimeError("this model has not been prepared: call tuning.prepare(model, optimizer, loader) first")
        return plan


def _warn_of_refusal(recipe: Recipe, value: Value, error: RefusedError) -> None:
    """Warn that a setting is left out because these objects do not support it."""
    warnings.warn(f"{format_setting(recipe.key, value)} is left out: {error.message}", stacklevel=6)
