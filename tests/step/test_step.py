import warnings
from collections import UserDict

import pytest
import torch
from exported_module import batches
from torch import nn

from advisor.recipe import Components
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.compile import compile_model
from advisor.step.step import InferStep, TrainStep, make_step


def net():
    torch.manual_seed(0)
    # No bias before the normalisation: its gradient is rounding alone, which Adam would blow up to full steps.
    convolution = nn.Conv2d(3, 8, 3, bias=False)
    layers = convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    return nn.Sequential(*layers)


def sgd(parameters, **options):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **options)


def train_step(model, optimizer, loss=None, **plan):
    return TrainStep(model, optimizer, loss or nn.CrossEntropyLoss(), StepPlan(mode=Mode.TRAIN, device="cpu", **plan))


# --- training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("zero_grad", "kept"), [("none", False), ("zeros", True), ("manual", False)])
def test_gradients_are_cleared_as_the_plan_says_once_all_batches_of_an_update_are_added_up(zero_grad, kept):
    model = net()
    step = train_step(model, sgd(model.parameters()), zero_grad=zero_grad, accumulate=2)
    step(batches(1)[0])
    step.zero_grad()
    assert all(parameter.grad.any() for parameter in model.parameters())
    step(batches(1)[0])
    step.zero_grad()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all((gradient is not None) is kept for gradient in gradients)
    assert not any(gradient.any() for gradient in gradients if gradient is not None)


def test_zeros_are_warned_of_where_a_parameter_got_no_gradient():
    model = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)])
    step = train_step(model, sgd(model.parameters()), lambda model, batch: model[0](batch).mean(), zero_grad="zeros")
    step(torch.ones(2, 3))
    with pytest.warns(UserWarning, match="some parameters got no gradient"):
        step(torch.ones(2, 3))


def sharpness_aware(model, batch):
    """The loss at the weights moved uphill: two forward passes, and a change of the weights between them."""
    inputs, targets = batch
    nn.functional.cross_entropy(model(inputs).float(), targets).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.grad, alpha=0.5)
            parameter.grad = None
    return nn.functional.cross_entropy(model(inputs).float(), targets)


def test_under_autocast_a_loss_may_change_the_weights_between_two_passes():
    model, plain = net(), net()
    step = train_step(model, sgd(model.parameters()), sharpness_aware, autocast="bfloat16")

    def passes_apart(inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return plain(inputs)

    passes_apart.parameters = plain.parameters
    data = batches(1)[0]
    assert step(data).item() == pytest.approx(sharpness_aware(passes_apart, data).item(), rel=1e-2)


def test_the_memory_format_reaches_the_batches():
    model, seen = net().to(memory_format=torch.channels_last), []
    model.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    train_step(model, sgd(model.parameters()), memory_format="channels_last")(batches(1)[0])
    assert seen == [True]


def test_a_mapping_that_is_no_dict_keeps_the_labels_of_a_model_that_takes_them():
    class Own(nn.Linear):
        def forward(self, x, labels=None):
            return {"loss": super().forward(x).square().mean() + labels}

    model = Own(3, 1)
    step = TrainStep(model, sgd(model.parameters()), None, StepPlan(mode=Mode.TRAIN, device="cpu"))
    assert step(UserDict({"x": torch.zeros(2, 3), "labels": torch.tensor(100.0)})) >= 100


# --- inference ------------------------------------------------------------------------------------------------


def infer_step(model, **plan):
    return InferStep(model, StepPlan(mode=Mode.INFER, device="cpu", **plan))


@pytest.mark.parametrize("grad_mode", ["grad", "no_grad", "inference_mode"])
def test_an_inference_step_gives_the_models_output_in_its_grad_mode_whatever_surrounds_it(grad_mode):
    model, batch = net().eval(), batches(1)[0]
    with torch.no_grad():
        output = infer_step(model, grad_mode=grad_mode)(batch)
    assert torch.equal(output, model(batch[0]))
    assert output.requires_grad is (grad_mode == "grad")
    assert output.is_inference() is (grad_mode == "inference_mode")


def test_outputs_and_losses_of_graphs_are_copied(monkeypatch):
    """A model that returns the same memory each time stands in for one compiled with reduce-overhead."""

    class Overwriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = torch.zeros(2)

        def forward(self, x):
            return {"out": self.kept.copy_(x)}

    monkeypatch.setattr(StepPlan, "device_type", "cuda")
    step = infer_step(Overwriting(), compile_mode="reduce-overhead", grad_mode="no_grad")
    outputs = [step(torch.full((2,), float(value)))["out"] for value in range(3)]
    assert [output[0].item() for output in outputs] == [0.0, 1.0, 2.0]


def test_a_schedule_that_is_made_after_the_step_draws_no_warning():
    model = net()
    optimizer = sgd(model.parameters())
    step = train_step(model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(batches(1)[0])
        schedule.step()


def test_an_optimizer_that_calls_the_loss_itself_is_refused_in_a_sentence():
    model = net()
    with pytest.raises(ValueError, match=r"LBFGS calls the loss itself.*Keep your own loop"):
        train_step(model, torch.optim.LBFGS(model.parameters()))


def test_a_wrapper_that_is_no_optimizer_is_refused_for_a_graph_in_a_sentence():
    class Wrapper:
        def step(self):
            """Run the optimizer's step."""

    with pytest.raises(ValueError, match=r"this is a wrapper: pass"):
        train_step(net(), Wrapper(), cuda_graph=True)


@pytest.mark.parametrize("zero_grad", ["none", "manual"])
def test_parameters_of_a_group_that_is_added_later_are_cleared_and_clipped(zero_grad):
    model = net()
    optimizer = sgd(model[0].parameters())
    step = train_step(model, optimizer, zero_grad=zero_grad, clip_norm=1e-3)
    step(batches(1)[0])
    optimizer.add_param_group({"params": model[5].parameters()})
    for batch in batches(3):
        step(batch)
    norms = [parameter.grad.norm() for group in optimizer.param_groups for parameter in group["params"]]
    assert torch.stack(norms).norm() <= 1.01e-3


# --- what the plan asks for -----------------------------------------------------------------------------------


@pytest.mark.compile
@pytest.mark.usefixtures("fresh_compiler")
def test_a_bare_container_is_really_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("torch._dynamo.config.suppress_errors", False)
    model, batch = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4)
    expected = model(batch)
    plan = StepPlan(mode=Mode.INFER, device="cpu", compile_mode="default", grad_mode="no_grad")
    components = Components(model, None, batch, plan)
    compile_model(components.model, components.plan)
    torch.testing.assert_close(make_step(components, None)(batch), expected)
    counters = torch._dynamo.utils.counters
    assert (counters["stats"]["unique_graphs"], counters["inductor"]["fxgraph_cache_miss"]) == (1, 1)
