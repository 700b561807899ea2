"""Steps of the user's own, captured, beside plain loops; on a graph that records operators in place of a CUDA graph."""

import copy
import warnings

import pytest
import torch
from own_step_loops import STEPS, Loop, Trainer, adam, agree, batches, captured_step, counts, net, run, sgd, trainer
from torch import nn

# --- what is captured -----------------------------------------------------------------------------------------


def gan():
    generator, critic = net(0, out=8), net(1)
    of_generator, of_critic = adam(generator), adam(critic)

    def step(real):
        noise = real.roll(1, 0)
        of_critic.zero_grad()
        fake = generator(noise)
        loss_critic = critic(fake.detach()).mean() - critic(real).mean()
        loss_critic.backward()
        of_critic.step()
        of_generator.zero_grad()
        loss = -critic(fake).mean()
        loss.backward()
        of_generator.step()
        return loss + 0 * loss_critic

    return Loop(step, [generator, critic], [of_generator, of_critic])


def q_learning():
    network, target = net(0, out=3), net(0, out=3)
    optimizer = adam(network)

    def step(state):
        with torch.no_grad():
            target.eval()  # a method, not the function that runs a text
            wanted = state.sum(1) + 0.9 * target(state.flip(0)).max(1).values
        loss = nn.functional.smooth_l1_loss(network(state).gather(1, torch.zeros(len(state), 1).long())[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(network.parameters(), 1.0)
        optimizer.step()
        ours, theirs = network.state_dict(), target.state_dict()
        for name in theirs:
            theirs[name] = 0.9 * theirs[name] + 0.1 * ours[name]
        target.load_state_dict(theirs)
        return loss

    return Loop(step, [network, target], [optimizer])


def gradient_penalty():
    generator, critic = net(0, out=8), net(1)
    of_generator, of_critic = adam(generator), adam(critic)

    def step(real):
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
        for _ in range(2):
            of_critic.zero_grad(set_to_none=True)
            fake = generator(real.roll(1, 0)).detach()
            between = (0.3 * real + 0.7 * fake).requires_grad_(True)
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            loss = critic(fake).mean() - critic(real).mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()
            loss.backward()
            of_critic.step()
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        of_generator.zero_grad()
        (-critic(generator(real.roll(1, 0))).mean()).backward()
        of_generator.step()
        return {"loss": loss.detach(), "other": 1}

    return Loop(step, [generator, critic], [of_generator, of_critic])


def accumulating():
    """Gradients that are added up in place and cleared with zeros."""
    model = net()
    optimizer = sgd(model)

    def step(batch):
        for part in batch.chunk(2):
            (model(part).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return model(batch).square().mean()

    return Loop(step, [model], [optimizer])


@pytest.mark.parametrize("make", [gan, q_learning, gradient_penalty, accumulating, trainer])
def test_a_captured_step_is_the_plain_one(make):
    step = agree(make)
    assert not step.refusal
    assert counts(step) == (1, STEPS - 3)


def test_what_no_code_of_the_step_names_may_change():
    def change(at, loop):
        loop.rest.epoch = at
        loop.rest.history.append(at)

    assert counts(agree(trainer, change=change)) == (1, STEPS - 3)


def test_a_tensor_that_each_step_replaces_is_the_callers_as_in_a_plain_loop():
    kept = {}
    for captures in (False, True):
        seen = kept[captures] = []
        run(
            trainer,
            captures=captures,
            change=lambda at, loop, seen=seen: at and seen.append(loop.rest.last_loss),
        )
    assert [float(loss) for loss in kept[True]] == pytest.approx([float(loss) for loss in kept[False]], rel=1e-4)
    assert len(set(map(id, kept[True]))) == STEPS - 1


def test_rates_are_copied_in_and_schedulers_go_on():
    def make():
        loop = gan()
        loop.rest = [torch.optim.lr_scheduler.ExponentialLR(one, 0.8) for one in loop.optimizers]
        return loop

    def change(at, loop):
        for schedule in loop.rest if at else ():
            schedule.step()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert counts(agree(make, change=change)) == (1, STEPS - 3)


def test_a_batch_of_another_size_runs_in_between():
    data = [*batches(6), *batches(1, size=4), *batches(5)]
    step = agree(gan, data=data)
    assert counts(step) == (1, 8)


def test_batches_that_stay_of_another_size_are_captured_anew():
    step = agree(gan, data=[*batches(6), *batches(20, size=4)])
    assert step.graph.captures == 2
    assert step.captured


def test_inference_is_captured_too():
    model = net(out=3)
    step = captured_step(lambda batch: {"scores": model(batch).softmax(1), "names": ["a"]}, model, mode="infer")
    data = batches()
    with torch.no_grad():
        outputs = [step(batch) for batch in data]
        for output, batch in zip(outputs, data, strict=True):
            torch.testing.assert_close(output["scores"], model(batch).softmax(1))
    assert counts(step) == (1, STEPS - 3)


# --- what changes between steps -------------------------------------------------------------------------------


def weight(at, loop):
    loop.rest.weight = 1.0 if at < 6 else 0.5


def frozen(at, loop):
    loop.rest.model[0].requires_grad_(at < 6)


def other_layer(at, loop):
    if at == 6:
        torch.manual_seed(5)
        loop.rest.model[2].weight = nn.Parameter(torch.randn(1, 16))


def other_memory(at, loop):
    if at == 6:
        loop.rest.model[0].weight.data = loop.rest.model[0].weight.data + 0.1


def decay(at, loop):
    if at == 6:
        loop.optimizers[0].param_groups[0]["weight_decay"] = 0.5


def loaded(at, loop):
    if at == 6:
        saved = copy.deepcopy(loop.optimizers[0].state_dict())
        for state in saved["state"].values():
            state["exp_avg"].zero_()
        loop.optimizers[0].load_state_dict(saved)


def other_method(at, loop):
    if at == 6:
        loop.rest.loss_of = lambda batch: 3 * loop.rest.model(batch).square().mean()


def gradient_hook(at, loop):
    """A hook of the user's own comes and goes: no capture while it is there."""
    if at == 6:
        loop.rest.hook = loop.rest.model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    if at == 8:
        loop.rest.hook.remove()


def of_class(at, loop):
    Trainer.scale = 1.0 if at < 6 else 3.0
    Trainer.loss_of = lambda self, batch: Trainer.scale * self.model(batch).square().mean()


def written(at, loop):
    if at == 6:
        with torch.no_grad():
            loop.rest.model[0].weight.mul_(0.5)


@pytest.mark.parametrize(
    ("change", "captures"),
    [
        (weight, 2),
        (frozen, 2),
        (other_layer, 1),
        (other_memory, 2),
        (decay, 2),
        (loaded, 2),
        (other_method, 2),
        (gradient_hook, 2),
        (written, 1),
    ],
)
def test_a_change_between_steps_is_followed(change, captures):
    step = agree(trainer, change=change, data=batches(20))
    assert step.graph.captures >= captures
    assert not step.refusal
    assert step.captured


def test_a_class_attribute_is_seen(monkeypatch):
    monkeypatch.setattr(Trainer, "scale", 1.0, raising=False)
    monkeypatch.setattr(Trainer, "loss_of", Trainer.loss_of)
    assert agree(trainer, change=of_class).graph.replays
