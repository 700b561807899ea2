"""Gradients clipped to a norm: by the step, by an exported file, and as a workload says."""

import pytest
import torch
from compiled_models import own_blocks, twin
from exported_module import module_of, plain_losses
from facts import cpu_facts
from proposals import CATALOG
from torch import nn

from advisor.python.file import WrittenFor
from advisor.recipe.plan import StepPlan
from advisor.records import Mode
from advisor.step.step import TrainStep
from advisor.step.tuning import Tuning

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def batches():
    generator = torch.Generator().manual_seed(4)
    return [(torch.randn(4, 8, generator=generator), torch.randint(4, (4,), generator=generator)) for _ in range(6)]


def losses_of(step):
    return [step(batch).item() for batch in batches()]


def plain_clipped(model, norm):
    return plain_losses(model, torch.optim.SGD(model.parameters(), lr=0.05), batches(), norm=norm)


def test_gradients_are_clipped_after_they_are_unscaled():
    torch.manual_seed(1)  # large inputs overflow in half precision
    model = own_blocks().train()
    plan = StepPlan(mode=Mode.TRAIN, device="cpu", autocast="float16", clip_norm=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = TrainStep(model, optimizer, nn.CrossEntropyLoss(), plan)
    step((torch.randn(4, 8), torch.tensor([0, 1, 2, 3])))
    total = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    assert total.item() <= 0.1 * (1 + 1e-4)
    assert step.scaler.get_scale() > 1


def test_the_public_api_clips():
    """To the same bits, also where the groups of the optimizer have the parameters in another order."""
    model, reference = twin(own_blocks)
    tuning = Tuning({})
    groups = [{"params": [parameter]} for parameter in reversed(list(model.parameters()))]
    model, optimizer = tuning.prepare(model, torch.optim.SGD(groups, lr=0.05))
    step = tuning.train_step(model, optimizer, nn.CrossEntropyLoss(), clip_grad=0.1)
    assert losses_of(step) == plain_clipped(reference, 0.1)
    assert all(map(torch.equal, model.state_dict().values(), reference.state_dict().values()))


def test_the_exported_file_clips():
    model, reference = twin(own_blocks)
    module = module_of(CATALOG, {}, "train", WrittenFor(facts=cpu_facts(clip_norm=0.1).workload))
    model, optimizer, _ = module.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    step = module.train_step(model, optimizer, nn.CrossEntropyLoss())
    assert losses_of(step) == pytest.approx(plain_clipped(reference, 0.1), rel=1e-6)
