"""The step of a loop that was loaded, under settings."""

from __future__ import annotations

from advisor.portable.plan import StepPlan
from advisor.recipe.catalog import load_catalog
from advisor.runtime.apply import apply_settings
from advisor.runtime.step import make_step


def step_of(loop, settings=None):
    components = loop.components(StepPlan(mode=loop.mode, device="cpu", clip_norm=loop.clip_norm), loop.data)
    apply_settings(load_catalog(), components, {**loop.current, **(settings or {})})
    return make_step(components, loop.loss)
