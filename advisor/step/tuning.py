"""Tuning: exported settings applied to a loop of the user's own. The public API behind ``advisor.load``."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from advisor.errors import RefusedError
from advisor.figures.formatting import format_setting
from advisor.recipe import Components, Recipe, Stage
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.recipe.plan import StepPlan
from advisor.recipe.settings import Settings
from advisor.records import Mode, Value
from advisor.step import spread
from advisor.step.apply import apply_recipe, apply_settings
from advisor.step.compile import accept_wrapped_names, as_written, compiled_as
from advisor.step.graph import GraphedStep, captured
from advisor.step.loss import LossForm
from advisor.step.optimizer import Together, optimizers_in
from advisor.step.prefetch import loop_loader
from advisor.step.step import InferStep, OwnStep, TrainStep, make_step, settle_optimizers
from advisor.step.wrappers import as_prepared

# Settings for both modes that change a model for good when it is prepared for inference.
_DIFFERS_IN_INFERENCE = frozenset({"precision.float8"})
_STRATEGY = "parallel.strategy"
# The strategies for which torchrun starts a process for each GPU.
_OVER_RANKS = frozenset({"ddp", "fully_shard"})


class Tuning:
    """Settings ready to be applied.

    ``prepare`` applies them to the objects; ``train_step`` and ``infer`` give the callable that runs one step. The
    recipes are the ones that the trials ran, so what runs is what was measured.
    """

    def __init__(self, settings: Mapping[str, Value], catalog: Catalog | None = None) -> None:
        self._catalog = catalog or load_catalog()
        self.settings = self._catalog.without_removed(settings)
        self._catalog.check(self.settings)
        self._prepared: WeakKeyDictionary[nn.Module, StepPlan] = WeakKeyDictionary()
        self._has_loader = False
        self._tuned: WeakSet[Any] = WeakSet()

    @classmethod
    def from_file(cls, path: str | Path) -> Tuning:
        """The settings of a YAML file. Raises UsageError when it cannot be read or holds anything else."""
        return cls(Settings.from_file(path))

    def prepare(self, *objects: Any) -> Any:
        """Apply the settings to models, optimizers and DataLoaders, and return all objects in the order given.

        The order and the meaning are those of Accelerate's ``prepare``. It takes any number of each, but one model at
        least. One object comes back bare, and what settings are not about comes back as it is. Models and optimizers
        are changed in place and stay the same objects, with their hooks, so schedulers made before or after work on.
        State dicts keep the names and the values of a plain loop. Each optimizer goes with the model whose parameters
        it holds; with an optimizer all models are prepared for training. The first loader is the one that trains: the
        others keep their batch size. A setting that an object does not take is left out for it, with a warning that
        says why. Models stay on their devices.

        Settings for several GPUs apply in processes that torchrun started, and leave one device alone with a warning
        elsewhere. There the process group is joined, and each model is moved to the GPU of its process and exchanges
        gradients when it is called in training. The first loader gives each process its part of every batch: its batch
        size is that of all processes together. The other loaders stay whole.
        """
        given = Given.of(objects)
        if not given.models and (given.optimizers or not given.loaders or not self._prepared):
            raise TypeError("prepare() needs the model: tuning.prepare(model, optimizer, loader)")
        mode = Mode.TRAIN if given.optimizers else Mode.INFER
        loaders = list(given.loaders)
        back: dict[int, Any] = {}
        plan = None if given.models else next(iter(self._prepared.values()))
        for model in given.models:
            first = loaders.pop(0) if loaders and plan is None else None
            components = self._prepare_model(model, given.optimizers_of(model), first, mode)
            if plan is not None:  # what the first loader was prepared for goes for its batches in every step
                components.plan = replace(components.plan, non_blocking=plan.non_blocking)
            plan = self._prepared[as_prepared(components.model)] = components.plan
            first_share = self._divided(components.data, plan)
            back |= {id(model): components.model, id(first): loop_loader(first_share, plan)}
            if len(trained := given.optimizers_of(model)) == 1:
                back.setdefault(id(trained[0]), optimizers_in(components.optimizer)[0])
        for loader in loaders:
            assert plan is not None
            back[id(loader)] = self._prepare_loader(loader, plan, divides=not given.models)
        prepared = tuple(back.get(id(item), item) for item in objects)
        return prepared[0] if len(prepared) == 1 else prepared

    def _prepare_model(self, model: nn.Module, optimizers: list[Any], loader: Any, mode: Mode) -> Components:
        """A model with its optimizers; of one that is prepared already only what is new."""
        fresh = [optimizer for optimizer in optimizers if optimizer not in self._tuned]
        self._tuned.update(fresh)
        optimizer = optimizers[0] if optimizers == fresh and len(fresh) == 1 else Together(optimizers, fresh)
        written = getattr(model, "_orig_mod", model) if compiled_as(model) else model
        present = self._prepared.get(as_prepared(model))
        if present is None or (present.mode is not mode and mode is Mode.TRAIN):
            if present is not None:
                self._check_trainable(model, present)
            return self._apply(model, optimizer if optimizers else None, loader, mode)
        components = Components(written, optimizer, loader, present, getattr(loader, "batch_size", None))
        self._apply_again(
            components, lambda recipe: recipe.stage is Stage.OPTIMIZER or (loader and _is_for_any_loader(recipe))
        )
        settle_optimizers(components)
        return components

    def _prepare_loader(self, loader: Any, plan: StepPlan, *, divides: bool) -> Any:
        """A loader that comes after the first one, or after the models; it keeps its batch size."""
        components = Components(None, None, loader, replace(plan, device_transform=None), loader.batch_size)
        self._apply_again(components, lambda recipe: _is_for_any_loader(recipe) and recipe.key != "data.batch_size")
        share = self._divided(components.data, plan) if divides else components.data
        return loop_loader(share, components.plan)

    def _apply_again(self, components: Components, wanted: Callable[[Recipe], object]) -> None:
        """Some of the settings, for objects that come after the first."""
        for recipe, value in self._catalog.in_order(self._settings_for(components, Mode(components.plan.mode))):
            if wanted(recipe):
                apply_recipe(recipe, components, value, _warn_of_refusal)

    def _check_trainable(self, model: nn.Module, plan: StepPlan) -> None:
        """Raise RuntimeError for a model that settings for inference have changed for good."""
        settings = self._settings_for(Components(model, None, None, plan), Mode.INFER)
        for recipe, value in self._catalog.in_order(settings):
            only_inference = Mode.TRAIN not in recipe.modes or recipe.key in _DIFFERS_IN_INFERENCE
            if recipe.stage is Stage.MODEL and only_inference and value != recipe.default:
                raise RuntimeError(
                    f"this model was prepared for inference, and {format_setting(recipe.key, value)} has changed its "
                    "layers: build it anew, and prepare it with its optimizer before you infer with it"
                )

    def train_step(
        self,
        model: nn.Module,
        optimizer: Any,
        loss: Callable[..., Any] | None = None,
        *,
        clip_grad: float | None = None,
        loss_form: str | None = None,
    ) -> TrainStep | GraphedStep:
        """A callable ``step(batch) -> detached loss``: moving the batch, autocast, scaler, zero_grad and graph inside.

        ``loss`` is ``loss(model, batch)`` or ``loss(output, target)``; without one the model's own is taken. Its
        parameters' names tell which; where they do not, it is called with output and target unless ``loss_form`` is
        ``"model_batch"``. ``clip_grad`` is the norm that the model's gradients are clipped to before the update. Pass
        what ``prepare`` returned. A model that is not in training mode is put into it now, once. Afterwards the mode is
        the loop's: one that validates in between switches with ``eval()`` and ``train()``, or evaluates with the step
        of ``infer``, which leaves the mode as it is.

        The step's ``scaler`` is the gradient scaler of float16 training, None without one. Its ``state_dict()`` and
        ``load_state_dict()`` hold what a checkpoint needs beside the model and the optimizer: the scaler's state, and
        how many batches of an update are in.

        A step in a CUDA graph looks at a few things before each replay and is captured anew where they changed
        (:class:`~advisor.step.graph.GraphedStep` lists them). After a change of anything else that the step reads, call
        ``step.recapture()``. It copies a batch in pinned memory while the host goes on: do not fill that memory anew
        before the device is done.
        """
        plan = self._plan_of(model)
        if plan.mode is not Mode.TRAIN:
            raise RuntimeError(
                "this model was prepared for inference: pass the optimizer too, `model, optimizer = "
                "tuning.prepare(model, optimizer)`, and train with the one that comes back"
            )
        if not model.training:
            model.train()
        components = Components(spread.over_ranks(model), optimizer, None, replace(plan, clip_norm=clip_grad))
        step: TrainStep | GraphedStep = captured(
            make_step(components, loss, form=LossForm(loss_form) if loss_form else None)
        )
        return step

    def own_step(self, step: Callable[[Any], Any], model: nn.Module) -> OwnStep | GraphedStep:
        """A step of your own, ``step(batch)``, under what the settings put around it: autocast, a CUDA graph.

        It returns what your step returns. ``model`` is one of those that the step works with, as ``prepare`` returned
        it. Settings that change what happens inside a step are not applied: the step stays as you wrote it. Its
        optimizers are found among the variables that it names and the attributes of objects there. Where a CUDA graph
        cannot hold it, a warning says why, and it runs uncaptured.
        """
        own: OwnStep | GraphedStep = captured(OwnStep(step, model, self._plan_of(model)))
        return own

    def infer(self, model: nn.Module) -> InferStep | GraphedStep:
        """A callable ``step(inputs) -> output`` for inference; prepares the model when ``prepare`` has not yet.

        A step evaluates whatever mode the model is in. A model that is being trained gets its mode back after each
        call, every layer its own; any other one is put into evaluation mode for good. What a step returns is the
        caller's: no later call changes it.
        """
        plan = self._prepared.get(as_prepared(model))
        if plan is None or plan.mode is not Mode.TRAIN:
            model.eval()
        if plan is None:
            components = self._apply(model, None, None, Mode.INFER)
        else:
            components = self._for_inference(Components(model, None, None, plan))
        step: InferStep | GraphedStep = captured(make_step(components, None, evaluates=True))
        return step

    def _for_inference(self, components: Components) -> Components:
        """A prepared model's components for an inference step; of one that is trained only the step is another."""
        if components.plan.mode is Mode.TRAIN:
            components.plan = replace(components.plan, mode=Mode.INFER)
            for recipe, value in self._catalog.in_order(self._settings_for(components, Mode.INFER)):
                if Mode.TRAIN not in recipe.modes and recipe.stage is Stage.STEP:
                    recipe.apply(components, value)
        return components

    def _apply(self, model: nn.Module, optimizer: Any, loader: Any, mode: Mode) -> Components:
        strategy = str(self.settings.get(_STRATEGY, "single")) if mode is Mode.TRAIN else "single"
        alone = spread.why_not_spread(strategy)
        if alone:
            warnings.warn(alone, stacklevel=_users_level())
        elif strategy in _OVER_RANKS:
            spread.join_ranks(model)
        plan = StepPlan(mode=mode, device=str(_device_of(model)), grad_mode="caller")
        own = compiled_as(model)
        written = as_written(model) if own else model
        if written is not model:
            written.register_load_state_dict_pre_hook(accept_wrapped_names)
        components = Components(written, optimizer, loader, plan, getattr(loader, "batch_size", None))
        # As in a trial: what the owner compiled is compiled behind the other settings, unless they say how.
        settings = Settings({**(own or {}), **self._settings_for(components, mode)})
        _warn_of_missing(self._catalog.environment(settings))
        apply_settings(self._catalog, components, settings, refused=_warn_of_refusal)
        self._prepared[as_prepared(components.model)] = components.plan
        if strategy != "single" and not alone:
            spread.spread_over_ranks(components.model, components.optimizer, components.plan)
        return components

    def _divided(self, loader: Any, plan: StepPlan) -> Any:
        """This process's part of the first loader, where the work is divided among several."""
        if self._has_loader or loader is None or spread.uses_accelerate() or not torch.distributed.is_initialized():
            return loader
        self._has_loader = True
        return spread.share_of_loader(loader, plan)

    def _settings_for(self, components: Components, mode: Mode) -> Settings:
        """The settings that concern the objects at hand: none of a loader without one, none of a GPU on the CPU."""
        kept = {}
        for recipe, value in self._catalog.in_order(self.settings):
            needs_loader = recipe.key.startswith("data.") and components.data is None
            needs_optimizer = recipe.key.startswith("optimizer.") and components.optimizer is None
            fits = mode in recipe.modes and components.plan.device_type in recipe.devices
            if fits and not needs_loader and not needs_optimizer:
                kept[recipe.key] = value
        return Settings(kept)

    def _plan_of(self, model: nn.Module) -> StepPlan:
        try:
            return self._prepared[as_prepared(model)]
        except KeyError:
            raise RuntimeError(
                "this model has not been prepared: call `model, optimizer, loader = tuning.prepare(model, optimizer, "
                "loader)` first"
            ) from None


def _warn_of_missing(environment: Mapping[str, str]) -> None:
    """Warn of environment variables that had to be set before Python started, with the command that sets them."""
    if missing := {name: text for name, text in environment.items() if text not in os.environ.get(name, "")}:
        assignments = " ".join(f"{name}={shlex.quote(text)}" for name, text in missing.items())
        warnings.warn(
            f"some settings need environment variables from the start: run your script as `{assignments} python ...`",
            stacklevel=_users_level(),
        )


def _users_level() -> int:
    """The ``stacklevel`` at which a function of this module warns of the line that called this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("advisor."):
        level, frame = level + 1, frame.f_back
    return level


def _warn_of_refusal(recipe: Recipe, value: Value, error: RefusedError) -> None:
    """Warn that a setting is left out because these objects do not take it."""
    warnings.warn(f"{format_setting(recipe.key, value)} is left out: {error.message}", stacklevel=_users_level())


def _is_for_any_loader(recipe: Recipe) -> bool:
    return recipe.key.startswith("data.")


def _device_of(model: nn.Module) -> torch.device:
    tensor = next(chain(model.parameters(), model.buffers()), None)
    return tensor.device if tensor is not None else torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Given:
    """The objects that settings are about, in the order given and each once; the others stay as they are."""

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]
    loaders: tuple[DataLoader[Any], ...]

    @classmethod
    def of(cls, objects: Iterable[Any]) -> Given:
        """Sort objects by kind. Parts of other modules, and modules without tensors beside others, are no models."""
        once = list({id(item): item for item in objects}.values())
        modules = [item for item in once if isinstance(item, nn.Module)]
        parts = {id(part) for module in modules for part in module.modules() if part is not module}
        models = [module for module in modules if id(module) not in parts]
        with_tensors = [model for model in models if next(chain(model.parameters(), model.buffers()), None) is not None]
        return cls(
            tuple(with_tensors or models),
            tuple(dict.fromkeys(_bare(item) for item in once if isinstance(item, Optimizer))),
            tuple(item for item in once if isinstance(item, DataLoader)),
        )

    def optimizers_of(self, model: nn.Module) -> list[Optimizer]:
        """The optimizers that train a model; those that train none of the models go with the first."""
        found = [optimizer for optimizer in self.optimizers if _trains(optimizer, model)]
        if model is self.models[0]:
            found += [one for one in self.optimizers if not any(_trains(one, other) for other in self.models)]
        return found


def _bare(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside one that hands everything on to it, such as Accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, Optimizer) else optimizer


def _trains(optimizer: Optimizer, model: nn.Module) -> bool:
    own = set(map(id, model.parameters()))
    return any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])
