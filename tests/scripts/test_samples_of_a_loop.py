"""The samples that a step of a loop is counted with, where what the loop goes through does not show them."""

import pytest

from advisor.trial.measurement.draws import Feed
from advisor.trial.timed_loop import stepper
from scripts.steps import step_of

X = "x, y = numbers[i : i + 16], 2 * numbers[i : i + 16]"
ADVERSARIES = """
critic, other = nn.Linear(1, 1), None
other = torch.optim.SGD(critic.parameters(), lr=1e-4)
for count in range(100):
    made = model(torch.randn(12, 1))
    other.zero_grad()
    critic(numbers[:12]).mean().backward()
    critic(made.detach()).mean().backward()
    other.step()
    optimizer.zero_grad()
    critic(made).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loop", "samples"),
    [
        (f"for i in range(0, 64, 16):\n    {X}\n    STEP", 16),
        (f"for epoch in range(9):\n    i = 0\n    while i < 64:\n        {X}\n        STEP\n        i += 16", 16),
        (f"import numpy\nfor i in numpy.arange(0, 64, 16):\n    {X}\n    STEP", 16),
        ("for chosen in torch.randperm(64).split(16):\n    x, y = numbers[chosen], 2 * numbers[chosen]\n    STEP", 16),
        ("for x, y in zip(numbers.split(16), (2 * numbers).split(16)):\n    STEP", 16),
        (ADVERSARIES, 12),
    ],
)  # fmt: skip
def test_a_step_counts_the_samples_of_its_batch(loop, samples, script):
    measured, _ = script(loop)
    assert stepper(step_of(measured), Feed(measured.data), measured.batch_size or 1)(3) == 3 * samples


ACCUMULATED = """
for count in range(100):
    optimizer.zero_grad()
    for part in range(4):
        (model(numbers[part : part + 8]) ** 2).mean().backward()
    optimizer.step()
"""
COMPARED = """
for count in range(100):
    optimizer.zero_grad()
    (model(numbers[:8]) - model(numbers[8:16])).square().mean().backward()
    optimizer.step()
"""
BESIDE = COMPARED.replace("numbers[8:16]", "numbers[:2].mean(0, keepdim=True)")  # as a boundary beside an equation
OBSERVED = """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for count in range(100):
    optimizer.zero_grad()
    model(torch.randn(4)).mean().backward()
    optimizer.step()
"""


TIMED = """
class Field(nn.Linear):
    def forward(self, t, y):
        return super().forward(y) * t
field = Field(1, 1)
optimizer = torch.optim.SGD(field.parameters(), lr=1e-4)
for count in range(100):
    optimizer.zero_grad()
    y = numbers[:8]
    for t in torch.linspace(0, 1, 3):  # as of a differential equation
        y = y + field(t, y)
    y.square().mean().backward()
    nn.utils.clip_grad_value_(field.parameters(), 1e9)
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loop", "samples"), [(ACCUMULATED, 32), (COMPARED, 8), (BESIDE, 8), (OBSERVED, 1), (TIMED, 8)]
)
def test_accumulated_batches_add_up_and_compared_ones_do_not(loop, samples, script):
    measured, _ = script(loop)
    assert (measured.batch_size or 1) == samples
