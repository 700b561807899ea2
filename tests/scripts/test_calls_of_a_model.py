"""Scripts that only call their model: several times for a batch, or in a thread."""

import pytest
import torch
from facts import gpu_facts
from proposals import reason

from advisor.errors import TargetError
from advisor.records import Mode
from advisor.trial.inspection import inspect_loop
from advisor.workloads.scripts import watch
from scripts.steps import HEAD, batches, step_of

WITHOUT_OPTIMIZER = HEAD.replace("optimizer = ", "# ")


@pytest.mark.parametrize(
    ("calls", "said", "data"),
    [
        ("both = (model(x) + model(-x)) / 2", "several times for each batch", "loader"),
        ("z = -x; model(z)", "the time to make them is left out", "z"),
    ],
)
def test_a_script_that_predicts_is_measured_on_its_batches_or_the_inputs_of_its_last_call(calls, said, data, script):
    loop, names = script(f"model.eval()\nwith torch.no_grad():\n    for x, y in loader:\n        {calls}\n")
    assert loop.mode is Mode.INFER
    assert any(said in note for note in loop.notes)
    assert loop.data is names[data] or torch.equal(loop.data, names[data])


EVALUATES = """
held_out = DataLoader(TensorDataset(numbers, -numbers), batch_size=16)

class Run:
    step = 0

@torch.no_grad()
def evaluate():
    model.eval()
    return [nn.functional.mse_loss(model(x), y) for x, y in held_out]

for x, y in loader:
    BEFORE
    model.train()
    STEP
    AFTER
    Run.step += 1
"""
PREDICTS = "with torch.no_grad(): model(x)"
SOMETIMES = "if Run.step % 100 == 0: evaluate()"


@pytest.mark.parametrize("before", ["pass", SOMETIMES, PREDICTS])
@pytest.mark.parametrize("after", ["pass", SOMETIMES, PREDICTS])
def test_an_evaluation_in_some_rounds_is_no_part_of_the_step(before, after, script):
    step = "loss = nn.functional.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward(); optimizer.step()"
    loop, names = script(EVALUATES.replace("BEFORE", before).replace("AFTER", after).replace("STEP", step))
    assert loop.step is None
    assert loop.loader is names["loader"]


class Scaled(torch.nn.Linear):
    def forward(self, x, scale=None, *, shift=0):
        return super().forward(x if scale is None else x * scale) + shift


@pytest.mark.parametrize("call", ["x, torch.ones(8, 1)", "x, scale=torch.ones(8, 1), shift=1", "scale=None, x=x"])
def test_a_script_without_a_loader_predicts_with_the_inputs_of_its_call(call, script):
    loop, names = script(
        "from scripts.test_calls_of_a_model import Scaled\nmodel = Scaled(1, 1)\n",
        f"x = torch.ones(8, 1)\nwith torch.inference_mode():\n    x = x + 1\n    out = model({call})\n",
    )
    assert loop.mode is Mode.INFER
    assert loop.batch_size == 8
    assert torch.equal(step_of(loop)(loop.data), names["out"])


def test_inputs_that_a_call_may_change_are_no_batch(script):
    with pytest.raises(TargetError, match="last call are not a batch"):
        script("""
            class Remembers(nn.Linear):
                def forward(self, x, past):
                    past.seen += 1
                    return super().forward(x)
            class Past:
                seen = 0
            Remembers(1, 1)(numbers, Past())
    """)


@pytest.mark.parametrize(
    ("rounds", "then", "mode"),
    [("while True:", "", Mode.INFER), ("for _ in range(4):", "for x, y in loader:\n    STEP\n", Mode.TRAIN)],
)
def test_a_script_that_predicts_for_long_is_left_where_it_has_no_optimizer(rounds, then, mode, script, monkeypatch):
    monkeypatch.setattr(watch, "_PREDICTS_S", 0.05)
    if not then:
        monkeypatch.setattr("scripts.conftest.HEAD", WITHOUT_OPTIMIZER)
    text = f"import time\nwith torch.no_grad():\n    {rounds}\n        model(numbers)\n        time.sleep(0.05)\n"
    loop, _ = script(text, then)
    assert loop.mode is mode
    assert any("paused while it predicted" in note for note in loop.notes) is (mode is Mode.INFER)


@pytest.mark.parametrize(
    ("around", "inputs", "current"),
    [
        ("torch.no_grad()", "x", {"infer.grad": "no_grad"}),
        ("torch.inference_mode()", "x", {"infer.grad": "inference_mode"}),
        ("torch.enable_grad()", "x", {"infer.grad": "grad"}),
        (
            "torch.no_grad(), torch.autocast('cpu', torch.bfloat16)",
            "x",
            {"infer.grad": "no_grad", "precision.autocast": "bfloat16"},
        ),
        ("torch.no_grad()", "x.bfloat16()", {"infer.grad": "no_grad"}),
    ],
)
def test_what_a_script_predicts_with_is_no_gain_of_ours(script, around, inputs, current):
    half = "model.bfloat16()" if "bfloat16()" in inputs else ""
    loop, _ = script(
        f"{half}\nloader = DataLoader(TensorDataset(numbers / 7), 8)\n"
        f"with {around}:\n    for (x,) in loader:\n        model({inputs})\n"
    )
    assert {key: value for key, value in loop.current.items() if key in current} == current
    with torch.no_grad():
        step_of(loop)(next(iter(loop.data)))


@pytest.mark.parametrize("then", ["", "with torch.no_grad():\n    for x, y in loader:\n        model(x)\n"])
def test_weights_that_a_script_updates_by_itself_are_trained_by_its_own_step(then, script, monkeypatch):
    monkeypatch.setattr("scripts.conftest.HEAD", WITHOUT_OPTIMIZER)
    loop, _ = script(
        """
for x, y in loader:
    (model(x) - y).abs().mean().backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-1e-4)
        p.grad = None
""",
        then,
    )
    assert loop.mode is Mode.TRAIN
    assert loop.optimizer is None
    before = loop.model.weight.detach().clone()
    assert len(set(batches(loop, 3))) == 3
    assert not torch.equal(before, loop.model.weight)


def test_a_model_that_was_made_in_inference_mode_is_measured(script):
    loop, _ = script("""
        @torch.inference_mode()
        def main():
            model = nn.Linear(1, 1)
            for x, y in loader:
                model(x)
        main()
    """)
    assert not any(parameter.is_inference() for parameter in loop.model.parameters())
    assert step_of(loop)(next(iter(loop.data))).shape == (8, 1)


@pytest.mark.parametrize(
    ("forward", "around", "casts"),
    [
        ("self.inner(x)", "torch.autocast('cpu', torch.bfloat16)", "bfloat16"),
        ("cast(self.inner, x)", "torch.enable_grad()", "bfloat16"),  # as Accelerate and Fabric do
        ("self.inner(x)", "torch.enable_grad()", "none"),
    ],
)
def test_autocast_inside_a_step_is_known(forward, around, casts, script):
    loop, _ = script(f"""
        def cast(module, x):
            with torch.autocast("cpu", torch.bfloat16):
                return module(x)
        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(1, 1)
            def forward(self, x):
                return {forward}
        model = Outer()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for x, y in loader:
            with {around}:
                loss = (model(x) - y).abs().mean()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1e9)  # no plain loop does
            optimizer.step()
            optimizer.zero_grad()
    """)
    assert inspect_loop(loop, torch.device("cpu"), [next(iter(loop.data))]).casts_inside == casts


OF_WEIGHTS = """
    (model(x * image) - y).abs().mean().backward()
    for copied, p in zip(trained, model.parameters() if trained[0] is not image else trained):
        copied.grad = p.grad.clone()
"""
# What is trained: an image, copies of the weights, and those that torch.func gives a module without values.
TRAINED = {
    "[image]": OF_WEIGHTS,
    "[p.detach().clone().requires_grad_() for p in model.parameters()]": OF_WEIGHTS,
    "[*weights.values()]; model = model.to('meta')": """
    (torch.func.functional_call(model, weights, x) - y).abs().mean().backward()
""",
}


@pytest.mark.parametrize("trained", TRAINED)
def test_what_is_trained_need_not_be_the_models(script, trained):
    loop, names = script(f"""
image = torch.rand(8, 1, requires_grad=True)
weights = {{name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}}
trained = {trained}
optimizer = torch.optim.SGD(trained, lr=1e-2)
for x, y in loader:
    optimizer.zero_grad()
{TRAINED[trained]}
    optimizer.step()
""")
    assert loop.model is names["model"] or "meta" in trained
    before = names["trained"][0].detach().clone()
    loop.to(torch.device("cpu"))
    batches(loop, 2)
    assert not torch.equal(before, names["trained"][0])


def test_a_model_that_is_called_in_a_thread_is_told(script):
    with pytest.raises(TargetError) as failure:
        script("""
            import threading
            thread = threading.Thread(target=lambda: seen.append(model(numbers)))
            thread.start()
            thread.join()
    """)
    assert "no model was called in its own thread" in failure.value.message
    assert "train.py:build" in failure.value.hint
    assert isinstance(vars(__import__("__main__"))["seen"][0], torch.Tensor)


def test_a_loop_that_goes_backward_twice_for_an_update_is_left_whole(script):
    loop, _ = script("""
        for step in range(100):
            x = torch.ones(4, 1)
            loss = model(model(x)).square().mean()
            loss.backward(retain_graph=True)
            (loss / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    """)
    facts = inspect_loop(loop, torch.device("cpu"), [next(iter(loop.data))])
    assert "round of your script's loop" in facts.capture_problem
    assert facts.batch_text == "made within the step"
    captures = gpu_facts(own_step=True, capture_problem=facts.capture_problem)
    assert reason("step_graph", captures) == facts.capture_problem


@pytest.mark.compile
def test_what_the_script_compiles_itself_is_watched_as_it_is_written(script):
    """The compiler would trace the hooks too; the rounds run what it compiles."""
    loop, names = script("""
        @torch.compile(backend=lambda graph, _: seen.append("compiled") or graph.forward)
        def compute(x, y):
            return (model(x) - y).abs().mean()

        for x, y in loader:
            optimizer.zero_grad()
            loss = compute(x, y)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
    """)
    assert not names["seen"]
    batches(loop, 2)
    assert names["seen"] == ["compiled"]
    assert loop.model is names["model"]
