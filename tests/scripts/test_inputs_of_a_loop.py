"""Plain loops that hand the parts of a mapping to the model, and which of them are no plain ones."""

from __future__ import annotations

import pytest
from torch import nn

from scripts.steps import step_of


@pytest.mark.parametrize(
    ("inputs", "target", "plain"),
    [
        ("a=batch['a'], b=batch['b']", "label", True),
        ("batch['a'], batch['b']", "label", True),
        ("b=batch['b'], a=batch['a']", "label", True),
        ("batch['b'], batch['a']", "label", False),
        ("a=batch['a'] + 1, b=batch['b']", "label", False),
        ("batch['a'], batch['b']", "other", False),
    ],
)
def test_a_mapping_whose_inputs_the_loop_names(script, inputs, target, plain):
    loop, _ = script(f"""
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)
    def forward(self, a, b):
        return self.inner(torch.cat([a, 2 * b], 1))
model = Two()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loss_fn = nn.MSELoss()
rows = [dict(a=n, b=n + 1, label=2 * n, other=3 * n) for n in numbers]
for batch in DataLoader(rows, batch_size=8):
    loss = loss_fn(model({inputs}), batch['{target}'])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    seen.append(loss.item())
""")
    assert (loop.step is None) is plain
    if plain:
        batch = next(iter(loop.data))
        expected = nn.functional.mse_loss(loop.model(batch["a"], batch["b"]), batch["label"])
        assert float(step_of(loop)(batch)) == pytest.approx(expected.item())
