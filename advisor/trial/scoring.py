"""A score: the number that the user's function gives for the model, in a process that times nothing.

A training runs some steps first: as many for every score, from the same seed and on the same batches.
"""

import math
from dataclasses import replace

import torch

from advisor.errors import TargetError
from advisor.recipe.catalog import Catalog
from advisor.records import Mode, Outcome, Score, TrialResult, TrialSpec
from advisor.step.compile import Models, call_through
from advisor.step.graph import captured, refuse_graph
from advisor.step.step import OwnStep, make_step
from advisor.trial.measurement.draws import Feed, seed_all
from advisor.trial.timed_loop import components_of, form_of_loss, resident_data
from advisor.workloads.entrypoint import in_user_code, load_function
from advisor.workloads.loop import Loop, describe


def scored_result(loop: Loop, device: torch.device, catalog: Catalog, spec: TrialSpec) -> TrialResult:
    """Apply the settings, train ``spec.steps`` steps if the loop trains, and have ``spec.evaluate`` score the model.

    Raises TargetError for a function that is not there, that raises, or that gives no number.
    """
    evaluate = load_function(spec.evaluate, spec.target.directory)
    components = components_of(loop, device, catalog, spec.settings)
    steps = spec.steps if loop.mode is Mode.TRAIN else 0
    if steps:
        train = captured(make_step(components, loop.loss, form=form_of_loss(loop, components, spec)), refuse_graph)
        seed_all(spec.stream_seed)
        feed = Feed(resident_data(components), spec.seed)
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
    with torch.no_grad(), step.contexts():  # around all of it: a function may call a part of the model, or a copy
        value = in_user_code(spec.evaluate, lambda: evaluate(*models))
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several, None
        number, value = math.nan, describe(value)
    if not math.isfinite(number):
        hint = "Return one number, higher is better: an accuracy."
        raise TargetError(f"{spec.evaluate} returned {value}, no number.", hint)
    return TrialResult(Outcome.MEASURED, score=Score(number, steps))
