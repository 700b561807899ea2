"""Tuning: exported settings applied to a loop of the user's own. The public API behind ``advisor.load``."""

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

import torch
from torch import nn
from torch.utils.data import DataLoader

from advisor.catalog import Catalog, load_catalog
from advisor.errors import RefusedError
from advisor.formatting import format_setting
from advisor.plan import StepPlan
from advisor.recipe import Components, Recipe
from advisor.records import Mode, Value
from advisor.runtime.apply import apply_settings
from advisor.runtime.compilation import as_written, compiled_as
from advisor.runtime.loader import loop_loader
from advisor.runtime.step import Step, make_step
from advisor.settings import Settings


class Tuning:
    """Settings ready to be applied.

    ``prepare`` applies them to the objects; ``train_step`` and ``infer`` give the callable that runs one step. The
    recipes are the ones that the trials ran, so what runs is what was measured.
    """

    def __init__(self, settings: Mapping[str, Value], catalog: Catalog | None = None) -> None:
        self.settings = Settings(settings)
        self._catalog = catalog or load_catalog()
        self._catalog.check(self.settings)
        self._prepared: WeakKeyDictionary[nn.Module, StepPlan] = WeakKeyDictionary()

    @classmethod
    def from_file(cls, path: str | Path) -> Tuning:
        """The settings of a YAML file. Raises UsageError when it cannot be read or holds anything else."""
        return cls(Settings.from_file(path))

    def prepare(self, *objects: Any) -> Any:
        """Apply the settings to a model, an optimizer and a DataLoader, and return them in the order given.

        The order and the meaning are those of Accelerate's ``prepare``: any of the objects but the model may be left
        out; one object is returned bare. What comes back replaces what was given: make learning-rate schedulers for
        the optimizer that comes back. The model stays on its device; a compiled one is wrapped, and the model given
        still holds the same parameters, so checkpoints are best saved from that.
        """
        model = _only(objects, nn.Module)
        if model is None:
            raise TypeError("prepare() needs the model: tuning.prepare(model, optimizer, loader)")
        optimizer = _only(objects, torch.optim.Optimizer)
        loader = _only(objects, DataLoader)
        components = self._apply(model, optimizer, loader, Mode.INFER if optimizer is None else Mode.TRAIN)
        data = loop_loader(components.data, components.plan)
        back = {id(model): components.model, id(optimizer): components.optimizer, id(loader): data}
        prepared = tuple(back.get(id(item), item) for item in objects)
        return prepared[0] if len(prepared) == 1 else prepared

    def train_step(
        self,
        model: nn.Module,
        optimizer: Any,
        loss: Callable[..., Any] | None = None,
        *,
        clip_grad: float | None = None,
    ) -> Step:
        """A callable ``step(batch) -> detached loss``: moving the batch, autocast, scaler, zero_grad and graph inside.

        ``loss`` is ``loss(model, batch)`` or ``loss(output, target)``; ``clip_grad`` is the norm that gradients are
        clipped to before the update. Pass what ``prepare`` returned. The model is put into training mode now, once: a
        loop that validates in between switches with ``eval()`` and ``train()``.
        """
        plan = self._plan_of(model)
        if plan.mode is not Mode.TRAIN:
            raise RuntimeError(
                "this model was prepared for inference: pass the optimizer too, `model, optimizer = "
                "tuning.prepare(model, optimizer)`, and train with the one that comes back"
            )
        model.train()
        return make_step(Components(model, optimizer, None, replace(plan, clip_norm=clip_grad)), loss)

    def infer(self, model: nn.Module) -> Step:
        """A callable ``step(inputs) -> output`` for inference; prepares the model when ``prepare`` has not yet."""
        model.eval()
        plan = self._prepared.get(model)
        if plan is None:
            components = self._apply(model, None, None, Mode.INFER)
        else:
            components = self._for_inference(Components(model, None, None, plan))
        return make_step(components, None)

    def _for_inference(self, components: Components) -> Components:
        """A prepared model's components for an inference step: after training, what concerns inference only is new."""
        if components.plan.mode is Mode.TRAIN:
            components.plan = replace(components.plan, mode=Mode.INFER)
            for recipe, value in self._catalog.in_order(self._settings_for(components, Mode.INFER)):
                if Mode.TRAIN not in recipe.modes:
                    recipe.apply(components, value)
        return components

    def _apply(self, model: nn.Module, optimizer: Any, loader: Any, mode: Mode) -> Components:
        plan = StepPlan(mode=mode, device=str(_device_of(model)))
        own = compiled_as(model)
        written = as_written(model) if own else model
        components = Components(written, optimizer, loader, plan, getattr(loader, "batch_size", None))
        # As in a trial: what the owner compiled is compiled behind the other settings, unless they say how.
        settings = Settings({**(own or {}), **self._settings_for(components, mode)})
        _warn_of_missing(self._catalog.environment(settings))
        apply_settings(self._catalog, components, settings, refused=_warn_of_refusal)
        self._prepared[components.model] = components.plan
        return components

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
            return self._prepared[model]
        except KeyError:
            raise RuntimeError(
                "this model has not been prepared: call `model, optimizer, loader = tuning.prepare(model, optimizer, "
                "loader)` first"
            ) from None


def _warn_of_missing(environment: Mapping[str, str]) -> None:
    """What has to be in the environment before Python starts cannot be applied any more: say what to set."""
    missing = {name: text for name, text in environment.items() if text not in os.environ.get(name, "")}
    if missing:
        assignments = " ".join(f"{name}={shlex.quote(text)}" for name, text in missing.items())
        warnings.warn(
            f"some settings need environment variables from the start: run your script as `{assignments} python ...`",
            stacklevel=4,
        )


def _warn_of_refusal(recipe: Recipe, value: Value, error: RefusedError) -> None:
    """What cannot be shown to do the same with these objects is left out: say which setting, and why."""
    warnings.warn(f"{format_setting(recipe.key, value)} is left out: {error.message}", stacklevel=5)


def _only(objects: tuple[Any, ...], kind: type) -> Any:
    found = [item for item in objects if isinstance(item, kind)]
    if len(found) > 1:
        raise TypeError(f"prepare() takes one {kind.__name__}; it was given {len(found)}")
    return found[0] if found else None


def _device_of(model: nn.Module) -> torch.device:
    tensor = next(chain(model.parameters(), model.buffers()), None)
    return tensor.device if tensor is not None else torch.device("cpu")
