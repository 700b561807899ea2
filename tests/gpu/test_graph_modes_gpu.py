"""Modes of torch.compile with CUDA graphs on a real GPU: in a loop of one's own, and with layers unfrozen later."""

import warnings

import pytest
import torch
from torch import nn

from advisor.step.tuning import Tuning

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_compiler")]
CUDA = torch.device("cuda")
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(CUDA)


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 8, generator=generator).to(CUDA), torch.randint(4, (8,), generator=generator).to(CUDA))
        for _ in range(count)
    ]


def parts(settings):
    model = net()
    tuning = Tuning(settings)
    model, optimizer = tuning.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    return tuning, model, optimizer


def assert_same(model, other):
    for have, want in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(have, want, **CLOSE)


def accumulated(settings):
    _, model, optimizer = parts(settings)
    losses, outputs = [], []
    for place, (inputs, labels) in enumerate(batches(18), 1):
        output = model(inputs)
        loss = nn.functional.cross_entropy(output, labels)
        (loss / 3).backward()
        losses.append(loss.detach())
        outputs.append(output.detach())
        if place % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model, losses, outputs


def test_a_loop_of_ones_own_adds_up_gradients_and_keeps_outputs():
    """https://github.com/pytorch/pytorch/issues/169545"""
    with pytest.warns(UserWarning, match="CUDA graphs of this compiled Sequential are left out"):
        model, *found = accumulated({"compile.mode": "reduce-overhead"})
    plain, *expected = accumulated({})
    torch.testing.assert_close(found, expected, **CLOSE)
    assert_same(model, plain)


def test_the_step_replays_graphs_and_the_loop_around_it_does_not():
    from torch._inductor.cudagraph_trees import get_manager  # the compiler, which collecting tests can do without

    tuning, model, optimizer = parts({"compile.mode": "reduce-overhead"})
    _, plain, plain_optimizer = parts({})
    step = tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
    held_out = batches(1)[0][0]
    for inputs, labels in batches(8):
        loss = step((inputs, labels))
        plain_optimizer.zero_grad()
        expected = nn.functional.cross_entropy(plain(inputs), labels)
        expected.backward()
        plain_optimizer.step()
        torch.testing.assert_close(loss, expected.detach(), **CLOSE)
        with torch.no_grad():
            torch.testing.assert_close(model(held_out), plain(held_out), **CLOSE)
    assert get_manager(0, create_if_none_exists=False) is not None
    assert_same(model, plain)


@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"compile.mode": "default"},
        {"compile.mode": "reduce-overhead"},
        {"compile.mode": "reduce-overhead", "compile.scope": "with_loss"},
    ],
    ids=["default", "reduce-overhead", "with loss"],
)
def test_layers_that_are_frozen_and_unfrozen_are_trained_when_they_should_be(settings, own_loop):
    """https://github.com/pytorch/pytorch/issues/139476"""

    def trained(chosen, own):
        tuning, model, optimizer = parts(chosen)
        step = None if own else tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
        moved = []
        for iteration, (inputs, labels) in enumerate(batches(16)):
            if iteration in (0, 5, 10):
                model[0].requires_grad_(iteration == 5)
                optimizer.zero_grad(set_to_none=True)
            before = model[0].weight.detach().clone()
            if step is not None:
                step((inputs, labels))
            else:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
            moved.append(not torch.equal(before, model[0].weight))
        return model, moved

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the CUDA graphs of")
        model, moved = trained(settings, own_loop)
    plain, expected = trained({}, True)
    assert moved == expected == [False] * 5 + [True] * 5 + [False] * 6
    assert_same(model, plain)


def test_a_shared_trunk_with_two_optimizers():
    def trained(settings):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(CUDA)
        trunk = torch.optim.SGD(model[0].parameters(), lr=0.1)
        head = torch.optim.SGD(model[2].parameters(), lr=0.1)
        tuning = Tuning(settings)
        model, trunk, head = tuning.prepare(model, trunk, head)
        steps = [tuning.train_step(model, optimizer, nn.CrossEntropyLoss()) for optimizer in (trunk, head)]
        return model, [step(batch) for batch in batches(8) for step in steps]

    model, losses = trained({"compile.mode": "reduce-overhead"})
    plain, expected = trained({})
    torch.testing.assert_close(losses, expected, **CLOSE)
    assert_same(model, plain)


def test_two_models_whose_steps_train_through_each_other():
    """The gradients that a step leaves in the other model lie in a graph's memory until its own step clears them."""

    def trained(settings):
        torch.manual_seed(0)
        one, other = nn.Linear(8, 8).to(CUDA), nn.Linear(8, 4).to(CUDA)
        first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, other))
        tuning = Tuning(settings)
        one, other, first, second = tuning.prepare(one, other, first, second)

        def loss(model, batch):
            return nn.functional.cross_entropy(other(one(batch[0])), batch[1])

        steps = [tuning.train_step(one, first, loss), tuning.train_step(other, second, loss)]
        return one, other, [step(batch) for batch in batches(8) for step in steps]

    *models, losses = trained({"compile.mode": "reduce-overhead"})
    *plain, expected = trained({})
    torch.testing.assert_close(losses, expected, **CLOSE)
    for model, written in zip(models, plain, strict=True):
        assert_same(model, written)


@pytest.fixture
def graphs_are_replayed(monkeypatch):
    """As in a new process."""
    monkeypatch.setattr("advisor.step.compiled_module.LEFT_OUT", [])


@pytest.mark.usefixtures("graphs_are_replayed")
def test_outputs_that_the_loss_keeps_are_not_overwritten():
    tuning, model, optimizer = parts({"compile.mode": "reduce-overhead"})
    _, plain, plain_optimizer = parts({})
    kept, expected = [], []

    def keeping(places):
        def loss(output, target):
            places.append(output.detach())
            return nn.functional.cross_entropy(output, target)

        return loss

    step = tuning.train_step(model, optimizer, keeping(kept))
    criterion = keeping(expected)
    with warnings.catch_warnings(record=True) as told:
        for inputs, labels in batches(8):
            step((inputs, labels))
            plain_optimizer.zero_grad()
            criterion(plain(inputs), labels).backward()
            plain_optimizer.step()
    assert sum("left out from now on: something keeps" in str(warning.message) for warning in told) == 1
    torch.testing.assert_close(kept, expected, **CLOSE)
    assert_same(model, plain)


@pytest.mark.usefixtures("graphs_are_replayed")
@pytest.mark.parametrize("grad", ["grad", "inference_mode"])
def test_features_that_a_hook_keeps_are_not_overwritten(grad):
    model, seen = net().eval(), []
    expected = [model[0](inputs).detach() for inputs, _ in batches(6)]
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.detach().clone()))
    infer = Tuning({"compile.mode": "reduce-overhead", "infer.grad": grad}).infer(model)
    with warnings.catch_warnings(record=True) as told:
        for inputs, _ in batches(6):
            infer(inputs)
    assert sum("left out from now on" in str(warning.message) for warning in told) == 1
    torch.testing.assert_close(seen, expected, **CLOSE)
