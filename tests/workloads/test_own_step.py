"""A step of the user's own, and batches that no DataLoader makes."""

from dataclasses import replace

import pytest
import torch
from facts import cpu_facts, gpu_facts
from scripts.steps import step_of
from torch import nn

from advisor import Workload
from advisor.errors import TargetError
from advisor.recipe.catalog import load_catalog
from advisor.records import Mode, TargetSpec
from advisor.step.compile import Models
from advisor.step.loss import LossError
from advisor.step.optimizer import Together
from advisor.step.step import OwnStep
from advisor.step.tuning import Tuning
from advisor.trial.inspection import inspect_loop
from advisor.trial.measurement.draws import probe_batches
from advisor.trial.measurement.probe import probe_training
from advisor.workloads.normalise import normalise

CPU = torch.device("cpu")


def spec(**changes):
    return replace(TargetSpec("t:build", "."), **changes)


def gan(**changes):
    """Two models with an optimizer each, trained by one step."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-2)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-2)

    def step(real):
        noise = torch.ones(len(real), 4)
        of_critic.zero_grad()
        (critic(generator(noise).detach()).mean() - critic(real).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        loss = -critic(generator(noise)).mean()
        loss.backward()
        of_generator.step()
        return loss

    made = {"step": step, "models": [generator, critic], "optimizers": [of_generator, of_critic]}
    return Workload(**{**made, "data": torch.randn(16, 8), **changes})


def lbfgs():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def step(batch):
        x, y = batch

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return Workload(step=step, model=model, optimizer=optimizer, data=(torch.randn(32, 3), torch.randn(32, 1)))


def facts_of(loop):
    return replace(cpu_facts(), workload=inspect_loop(loop, CPU, probe_batches(loop.data, 0)))


def test_several_optimizers_have_the_state_of_each_and_get_no_more_by_being_asked():
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    optimizers = [torch.optim.Adam(models[0].parameters()), torch.optim.SGD(models[1].parameters(), momentum=0.9)]
    together = Together(optimizers)
    assert not together.state
    for model, optimizer in zip(models, optimizers, strict=True):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert all(together.state.get(one) is optimizer.state[one] for one in model.parameters())
    assert [len(optimizer.state) for optimizer in optimizers] == [2, 2]


class TestAStepOfOnesOwn:
    def test_several_models_and_optimizers_are_one_loop(self):
        loop = normalise(gan(), spec())
        assert (type(loop.model), type(loop.optimizer), loop.mode) == (Models, Together, Mode.TRAIN)
        assert facts_of(loop).workload.model == "Linear + Linear"
        assert facts_of(loop).workload.optimizer.name == "Adam + Adam"

    def test_a_closure_is_called_as_often_as_the_optimizer_likes(self):
        loop = normalise(lbfgs(), spec())
        probe = probe_training(step_of(loop), [loop.data] * 3, 0)
        assert probe.losses[0] > probe.losses[-1]

    def test_recipes_that_must_see_inside_skip_with_that_reason_and_others_are_tried(self):
        proposals = load_catalog().propose(facts_of(normalise(gan(), spec())))
        for recipe in ("zero_grad", "grad_accumulation"):
            assert "the step is your own" in proposals.skipped[recipe], recipe
        assert "optimizer.implementation" in {candidate.key for candidate in proposals.candidates}
        assert ("compile.scope", "with_loss") not in {(c.key, c.value) for c in proposals.candidates}

    def test_settings_reach_each_model_and_optimizer_as_by_the_public_api(self):
        settings = {"optimizer.implementation": "fused", "precision.autocast": "bfloat16"}
        loop = normalise(gan(), spec())
        step = step_of(loop, settings)
        assert isinstance(step, OwnStep)
        types = []
        loop.model[0].register_forward_hook(lambda *seen: types.append(seen[-1].dtype))
        loss = float(step(loop.data))
        assert all(group["fused"] for group in loop.optimizer.param_groups)
        assert set(types) == {torch.bfloat16}
        workload, tuning = gan(), Tuning(settings)
        prepared = tuning.prepare(*workload.models, *workload.optimizers)
        assert float(tuning.own_step(workload.step, prepared[0])(workload.data).detach()) == loss

    def test_autocast_keeps_no_stale_copy_of_a_weight(self):
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

        def step(x):
            model(x).sum().backward()
            optimizer.step()
            return model(x).sum()

        loop = normalise(Workload(step=step, model=model, optimizer=optimizer, data=torch.ones(1, 1)), spec())
        with torch.no_grad():
            model.weight.fill_(4.0)
        assert float(step_of(loop, {"precision.autocast": "bfloat16"})(loop.data)) == 3.0

    def test_inference_returns_the_output(self):
        model = nn.Linear(2, 3)
        loop = normalise(Workload(step=model, model=model, data=torch.ones(5, 2), mode="infer"), spec())
        assert step_of(loop)(loop.data).shape == (5, 3)
        assert loop.mode is Mode.INFER

    def test_it_is_captured_whole_where_its_optimizers_can_be(self):
        facts = gpu_facts(own_step=True)
        assert ("step.cuda_graph", True) in {(c.key, c.value) for c in load_catalog().propose(facts).candidates}


class TestWhatDoesNotFit:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"step": None}, "no step that uses them"),
            ({"models": None}, "none of its models"),
            ({"models": [nn.Linear]}, "model is the class Linear, not an nn.Module"),
            ({"optimizers": [torch.optim.Adam]}, "optimizer is the class Adam"),
            ({"data": None}, "no data"),
            ({"loss": nn.MSELoss()}, "returns a step, and also a loss"),
            ({"mode": "infer"}, "does not fit"),
        ],
    )
    def test_says_so(self, changes, said):
        with pytest.raises(TargetError) as error:
            normalise(gan(**changes), spec(mode=Mode.TRAIN))
        assert said in error.value.message
        assert error.value.hint

    @pytest.mark.parametrize(
        ("result", "factor"),
        [
            (lambda loss: loss.item(), 1),
            (lambda loss: {"loss": float(loss), "accuracy": 0.5}, 1),
            (lambda loss: (loss.item(), 7), 1),
            (lambda loss: (7, loss), 1),  # one tensor alone is the loss
            (lambda loss: {"d": 2 * loss, "g": loss}, 3),  # of several the sum is compared
            (lambda loss: ({"d": 2 * loss}, {"g": loss, "seen": 8}), 3),
            (lambda loss: [2 * loss, loss], 3),
        ],
    )
    def test_a_loss_may_be_a_number_of_pythons_or_several(self, result, factor):
        model = nn.Linear(2, 1)
        loop = normalise(Workload(step=lambda b: result(model(b).sum()), model=model, data=torch.ones(1, 2)), spec())
        loss = step_of(loop)(loop.data)
        assert isinstance(loss, torch.Tensor)
        assert float(loss) == pytest.approx(factor * float(model(loop.data).sum()))

    @pytest.mark.parametrize("result", [None, True, "0.5", {"accuracy": 0.5}, ()])
    def test_what_is_no_loss_is_not_taken_for_one(self, result):
        loop = normalise(Workload(step=lambda b: result, model=nn.Linear(2, 2), data=torch.ones(1, 2)), spec())
        with pytest.raises(LossError, match=f"the step returns (a )?{type(result).__name__}"):
            step_of(loop)(loop.data)
