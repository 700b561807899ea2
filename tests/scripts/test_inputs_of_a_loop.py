"""Loops that hand the parts of a mapping to the model: plain ones, others, and those that generate text."""

import pytest
import torch
from torch import nn

from advisor.records import Mode
from scripts.steps import step_of


@pytest.mark.parametrize(
    ("inputs", "target"),
    [
        ("a=batch['a'], b=batch['b']", "label"),
        ("batch['a'], batch['b']", "label"),
        ("b=batch['b'], a=batch['a']", "label"),
        ("batch['b'], batch['a']", "label"),
        ("a=batch['a'] + 1, b=batch['b']", "label"),
        ("batch['a'], batch['b']", "other"),
    ],
)
def test_a_mapping_whose_inputs_the_loop_names(script, inputs, target):
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
    assert loop.step is None
    batch = next(iter(loop.data))
    expected = nn.functional.mse_loss(eval(f"model({inputs})", {"model": loop.model, "batch": batch}), batch[target])
    assert float(step_of(loop)(batch)) == pytest.approx(expected.item())


@pytest.mark.process
@pytest.mark.parametrize("source", ["loader", "prompts"])
def test_the_generation_of_text_is_a_step(source, script):
    pytest.importorskip("transformers")
    loop, names = script(f"""
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50)).eval()
prompts = [dict(input_ids=torch.randint(50, (2, 5)), attention_mask=torch.ones(2, 5).long()) for _ in range(3)]
loader = DataLoader(prompts, batch_size=None)
chosen = GenerationConfig(max_new_tokens=4, eos_token_id=None, pad_token_id=0)
for batch in {source}:
    with torch.no_grad():
        seen.append(model.generate(**batch, generation_config=chosen, top_k=7))
""")
    assert loop.mode is Mode.INFER
    assert (loop.step.new_tokens, loop.step.options["top_k"]) == (4, 7)
    assert (loop.data is names["loader"]) is (source == "loader")
    assert torch.equal(loop.step(names["prompts"][-1]), names["seen"][-1])
