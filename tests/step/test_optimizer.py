"""Options of an optimizer changed in place, and what it saves and loads then."""

import copy

import pytest
import torch
from proposals import CATALOG
from saved import through_disk
from torch import nn

from advisor.errors import RefusedError
from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.step.optimizer import UNSCALES, TensorRates, optimizer_implementation, set_options, sparse_parameters
from advisor.step.tuning import Tuning
from advisor.trial.inspection import implementations_of

FLAGS = {
    "fused": {"fused": True, "foreach": False},
    "foreach": {"fused": False, "foreach": True},
    "for-loop": {"fused": False, "foreach": False},
}
CLASSES = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"betas": (0.8, 0.9)}),
    "AdamW, amsgrad": (torch.optim.AdamW, {"weight_decay": 0.1, "amsgrad": True}),
    "Adagrad": (torch.optim.Adagrad, {}),
}
each_class = pytest.mark.parametrize(("optimizer_class", "options"), CLASSES.values(), ids=CLASSES)


class Passing(torch.optim.Adam):
    """A user's class with further attributes and a constructor that cannot be called again."""

    def __init__(self, params, scale, **options):
        super().__init__(params, **options)
        self.scale, self.cleared = scale, 0

    def zero_grad(self, set_to_none=True):
        self.cleared += 1
        super().zero_grad(set_to_none)


class OwnStep(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


ONES = torch.ones(3, 4)
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def parts():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


def made(optimizer_class=torch.optim.AdamW, **options):
    model = parts()
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[1].parameters()}]
    return model, optimizer_class(groups, **{"lr": 0.01, **options})


def train(model, optimizer, steps=3, batch=ONES):
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()


def assert_same_weights(model, other):
    for have, want in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(have, want)


def assert_same_saved(have, want):
    assert have["param_groups"] == want["param_groups"]
    assert have["state"].keys() == want["state"].keys()
    for key, expected in want["state"].items():
        assert have["state"][key].keys() == expected.keys()
        for name, value in expected.items():
            assert have["state"][key][name].device == value.device
            torch.testing.assert_close(have["state"][key][name], value)


# --- in place -------------------------------------------------------------------------------------------------


@each_class
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_a_changed_optimizer_is_as_one_that_was_made_so(optimizer_class, options, flags):
    expected, constructed = made(optimizer_class, **options, **flags)
    model, optimizer = made(optimizer_class, **options)
    set_options(optimizer, **flags)
    assert optimizer.defaults == constructed.defaults
    for group, want in zip(optimizer.param_groups, constructed.param_groups, strict=True):
        assert {n: v for n, v in group.items() if n != "params"} == {n: v for n, v in want.items() if n != "params"}
    assert bool(getattr(optimizer, UNSCALES, False)) is bool(getattr(constructed, UNSCALES, False))
    train(model, optimizer)
    train(expected, constructed)
    assert_same_weights(model, expected)


def test_hooks_names_and_what_a_class_keeps_stay():
    model, seen = parts(), []
    optimizer = Passing(model.named_parameters(), 3.0, lr=0.3)
    optimizer.register_step_post_hook(lambda *_: seen.append("step"))
    optimizer.register_state_dict_post_hook(lambda *_: seen.append("state"))
    set_options(optimizer, fused=True)
    train(model, optimizer, 1)
    optimizer.state_dict()
    assert seen == ["step", "state"]
    assert (optimizer.scale, optimizer.cleared, optimizer_implementation(optimizer)) == (3.0, 1, "fused")
    assert optimizer.param_groups[0]["param_names"][0] == "0.weight"


def test_groups_added_later_have_the_options():
    model, optimizer = made()
    set_options(optimizer, foreach=True)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.5})
    train(model, optimizer)
    assert optimizer.param_groups[2]["foreach"] is True
    saved = optimizer.state_dict()["param_groups"]
    assert [group["foreach"] for group in saved] == [None, None, None]


@pytest.mark.parametrize("options", [{}, {"nesterov": True, "weight_decay": 0.1}])
def test_a_fused_sgd_trains_parameters_that_join_late(options):
    def trained(fused):
        torch.manual_seed(0)
        early, frozen, late = (nn.Parameter(torch.randn(3)) for _ in range(3))
        optimizer = torch.optim.SGD([early, frozen.requires_grad_(False)], lr=0.1, momentum=0.9, **options)
        if fused:
            set_options(optimizer, fused=True, foreach=False)
        for iteration in range(6):
            if iteration == 2:
                optimizer.param_groups[0]["params"].append(late)
                frozen.requires_grad_(True)
            optimizer.zero_grad()
            (early * (frozen + 1) * (late + 2)).square().mean().backward()
            optimizer.step()
        return early, frozen, late

    torch.testing.assert_close(trained(fused=True), trained(fused=False))


def test_a_fused_sgd_whose_first_step_a_scaler_skips_goes_on():
    def trained(fused):
        parameter = nn.Parameter(torch.ones(64))
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        if fused:
            set_options(optimizer, fused=True, foreach=False)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for factor in (float("inf"), 1.0, 1.0, 1.0):
            optimizer.zero_grad()
            scaler.scale((parameter * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return parameter

    torch.testing.assert_close(trained(fused=True), trained(fused=False), rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("optimizer", "changes", "message"),
    [
        (torch.optim.LBFGS, {"fused": True}, "LBFGS cannot be changed: .* 'fused'"),
        (torch.optim.RMSprop, {"fused": True}, "RMSprop cannot be changed: .* 'fused'"),
        (lambda p: OwnStep(p, lr=0.1), {"foreach": True}, "OwnStep has a step of its own"),
        (lambda p: torch.optim.Adam(p, foreach=True), {"fused": True}, "cannot be `True` together"),
        (lambda p: torch.optim.Adam(p, differentiable=True), {"fused": True}, "does not support `differentiable`"),
        (lambda p: torch.optim.Adam([nn.Parameter(torch.ones(2, dtype=torch.cfloat))]), {"fused": True}, "floating"),
        (lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1)), {"foreach": True}, "lr as a Tensor"),
        (lambda p: torch.optim.SGD(p, momentum=0.9, dampening=0.5), {"fused": True}, "joins later"),
    ],
)
def test_what_cannot_be_changed_says_so_and_stays_as_it_is(optimizer, changes, message):
    kept = optimizer(list(parts().parameters()))
    before = copy.deepcopy(kept.state_dict()), dict(kept.defaults), vars(kept).keys()
    with pytest.raises(RefusedError, match=message):
        set_options(kept, **changes)
    assert (kept.state_dict(), kept.defaults, vars(kept).keys()) == before


# --- another class --------------------------------------------------------------------------------------------


def changed(optimizer, recipe_id, value):
    CATALOG[recipe_id].apply(Components(None, optimizer, None, StepPlan(mode="train", device="cpu")), value)


def test_an_optimizer_of_another_class_is_still_the_one_that_others_hold():
    model, seen = parts(), []
    optimizer = torch.optim.AdamW([{"params": model.named_parameters(), "name": "all", "weight_decay": 0.2}], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: seen.append("step"))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    changed(optimizer, "optimizer_memory", "adafactor")
    train(model, optimizer, 1)
    with pytest.warns(UserWarning, match="overridden"):
        schedule.step()
    assert type(optimizer) is torch.optim.Adafactor
    group = optimizer.param_groups[0]
    assert (group["name"], group["weight_decay"], group["initial_lr"], group["lr"]) == ("all", 0.2, 0.1, 0.05)
    assert group["param_names"][0] == "0.weight"
    assert "betas" not in group
    assert seen == ["step"]
    assert "row_var" in optimizer.state[model[0].weight]


def test_an_optimizer_with_state_keeps_its_class():
    model, optimizer = made(torch.optim.AdamW)
    train(model, optimizer, 1)
    with pytest.raises(RefusedError, match="has made steps"):
        changed(optimizer, "optimizer_memory", "adafactor")


# --- saved and loaded -----------------------------------------------------------------------------------------


@each_class
@pytest.mark.parametrize("flags", [FLAGS["fused"], FLAGS["foreach"]], ids=["fused", "foreach"])
@pytest.mark.parametrize("started", [False, True])
def test_checkpoints_go_both_ways(optimizer_class, options, flags, started):
    options = {"foreach": False, **options}
    expected, plain = made(optimizer_class, **options)
    train(expected, plain)
    halfway = through_disk({"model": expected.state_dict(), "optimizer": plain.state_dict()})
    train(expected, plain)

    model, optimizer = made(optimizer_class, **options)
    set_options(optimizer, **flags)
    if started:
        train(model, optimizer)
    model.load_state_dict(halfway["model"])
    optimizer.load_state_dict(halfway["optimizer"])
    assert all(group[name] is flag for group in optimizer.param_groups for name, flag in flags.items())
    assert optimizer_implementation(optimizer) == next(name for name, found in FLAGS.items() if found == flags)
    train(model, optimizer)
    assert_same_saved(through_disk(optimizer.state_dict()), plain.state_dict())

    again, other = made(optimizer_class, **options)
    again.load_state_dict(model.state_dict())
    other.load_state_dict(through_disk(optimizer.state_dict()))
    train(again, other)
    train(expected, plain)
    assert_same_weights(again, expected)


def images():
    torch.manual_seed(0)
    return nn.Conv2d(3, 8, 3)


@pytest.mark.parametrize("own", [True, False], ids=["fused by its owner", "fused by a setting"])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_fused_step_over_weights_of_another_layout_finds_its_state(own, loaded):
    expected = images()
    plain = torch.optim.AdamW(expected.parameters(), lr=0.01, fused=own or None)
    train(expected, plain, batch=IMAGES)
    saved = through_disk([expected.state_dict(), plain.state_dict()])
    train(expected, plain, batch=IMAGES)

    model = images()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=own or None)
    settings = {"model.memory_format": "channels_last"} | ({} if own else {"optimizer.implementation": "fused"})
    if loaded:
        model, optimizer = Tuning(settings).prepare(model, optimizer)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    else:
        train(model, optimizer, batch=IMAGES)
        model, optimizer = Tuning(settings).prepare(model, optimizer)
    train(model, optimizer, batch=IMAGES)
    assert optimizer.param_groups[0]["fused"] is True
    assert_same_weights(model, expected)
    saved = optimizer.state_dict()["state"][0]
    assert saved["exp_avg"].is_contiguous()
    assert optimizer.state[model.weight]["exp_avg"].stride() == model.weight.stride()


# --- learning rates in tensors --------------------------------------------------------------------------------


def test_a_group_added_later_and_a_rate_that_is_a_tensor():
    _, optimizer = made()
    optimizer.param_groups[1]["lr"] = rate = torch.tensor(0.25)
    rates = TensorRates(optimizer, torch.device("cpu"))
    rates.refresh()
    rate.fill_(0.75)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 2.0})
    with rates.inside():
        assert [group["lr"].item() for group in optimizer.param_groups] == [pytest.approx(0.05), 0.75, 2.0]
    assert optimizer.param_groups[1]["lr"] is rate
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.75, 2.0]


# --- facts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (torch.optim.AdamW, ("for-loop", "foreach", "fused")),
        (torch.optim.RMSprop, ("for-loop", "foreach")),
        (torch.optim.LBFGS, ("for-loop",)),
        (lambda p: OwnStep(p, lr=0.1), ("for-loop",)),
    ],
)
def test_the_implementations_are_those_of_the_class(optimizer, expected):
    assert implementations_of(optimizer(list(parts().parameters()))) == expected


def test_a_device_without_the_fused_kernel_is_not_offered_it():
    on_meta = torch.optim.Adagrad([torch.zeros(2, device="meta", requires_grad=True)])
    assert implementations_of(on_meta) == ("for-loop", "foreach")
    with pytest.raises(RefusedError, match="supported devices"):
        CATALOG["fused_optimizer"].apply(Components(nn.Linear(1, 1), on_meta, None, StepPlan("train", "cpu")), "fused")


def test_sparse_gradients_are_not_fused():
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 2))
    assert sparse_parameters(model) == {model[0].weight}
    adam = torch.optim.SGD(model.parameters(), lr=0.1)
    assert implementations_of(adam, sparse_parameters(model)) == ("for-loop", "foreach")


@pytest.mark.parametrize("layer_says", [True, False])
@pytest.mark.parametrize(("kind", "options"), [("SGD", {}), ("SGD", {"momentum": 0.9}), ("Adagrad", {})])
def test_fused_is_left_out_where_gradients_are_sparse(kind, options, layer_says):
    def trained(settings):
        torch.manual_seed(0)
        table = nn.Embedding(8, 4, sparse=layer_says)
        optimizer = getattr(torch.optim, kind)(table.parameters(), lr=0.1, **options)
        Tuning(settings).prepare(table, optimizer)
        for at in range(4):
            optimizer.zero_grad()
            nn.functional.embedding(torch.tensor([at, at + 1]), table.weight, sparse=True).square().sum().backward()
            optimizer.step()
        assert optimizer_implementation(optimizer) == "default"
        return {**table.state_dict(), "optimizer": optimizer.state_dict()}

    with pytest.warns(UserWarning, match="optimizer.implementation: fused is left out"):
        found = trained({"optimizer.implementation": "fused"})
    torch.testing.assert_close(found, trained({}), rtol=0, atol=0)
