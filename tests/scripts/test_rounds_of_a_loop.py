"""Loops whose rounds are not all alike, what stands beside their step, and the samples of a step."""

import pytest

from advisor.errors import TargetError
from advisor.trial.measurement.draws import Feed
from advisor.trial.timed_loop import stepper
from advisor.workloads.scripts import rounds
from advisor.workloads.scripts.rounds import WholeRounds
from scripts.steps import STEP, batches, step_of

UPDATE = "optimizer.zero_grad(); (model(state) ** 2).mean().backward(); optimizer.step()"
COUNTS = ["for count in range(1000):", "for count in itertools.count():", "count = -1\nwhile True:\n    count += 1"]


@pytest.mark.parametrize("head", COUNTS)
def test_the_rounds_up_to_a_backward_pass_are_one_step(head, script):
    """For example, an agent acts four times for each update."""
    loop, names = script(f"""
import itertools
state = torch.ones(1, 1)
{head}
    state = state * 0.9
    seen.append(count)
    if count % 4 == 3:
        {UPDATE}
""")
    names["seen"].clear()
    before = names["count"]
    batches(loop, 3)
    assert len(names["seen"]) in (9, 12), "the first round may be any of the four"
    if "while" in head:
        assert names["seen"] == list(range(before + 1, before + 13))


@pytest.mark.parametrize("inner", ["for step in range(100):", "while True:"])
@pytest.mark.parametrize("outer", ["for episode in range(100):", "while len(seen) < 500:"])
def test_where_an_episode_ends_the_next_begins(outer, inner, script):
    """In DQN, for example, an outer loop resets the environment."""
    loop, names = script(f"""
def main():
    {outer}
        state, age = torch.ones(1, 1), 0
        {inner}
            state, age = (state * 0.5, age + 1) if age < 3 else (None, age + 1)
            seen.append(age)
            if state is None:
                break
            {UPDATE}
        seen.append("end")
main()
""")
    names["seen"].clear()
    batches(loop, 7)
    assert len([age for age in names["seen"] if age in (1, 2, 3)]) == 7
    assert names["seen"].count("end") >= 2
    for last, end, first in zip(names["seen"], names["seen"][1:], names["seen"][2:], strict=False):
        assert end != "end" or (last, first) == (4, 1)


FOLDS = f"""
for fold in range(3):
    model = nn.Linear(1, 1); optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for epoch in range(2):
        for count in range(3):
            x, y = numbers[count : count + 1], numbers[:1]
            seen.append(id(model)); {STEP}
"""
RUNS = f"""
class Run:
    def __init__(self):
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def fit(self):
        for count in range(6):
            x, y = numbers[count : count + 1], numbers[:1]
            seen.append(id(self.model)); {STEP.replace("model", "self.model").replace("optimizer.", "self.optimizer.")}

runs = [Run() for seed in range(3)]
for run in runs:
    run.fit()
"""


@pytest.mark.parametrize("text", [FOLDS, RUNS], ids=["folds", "runs"])
def test_a_loop_around_the_one_of_a_model_does_not_go_on_to_the_next(text, script):
    """For example, a script trains several folds or seeds; the settings were applied to the first model."""
    loop, names = script(text)
    if text == FOLDS:  # its epochs begin anew
        batches(loop, 30)
        assert len(set(names["seen"])) == 1
    else:
        with pytest.raises(TargetError, match="has come to its end"):
            batches(loop, 30)
        assert names["seen"].index(id(names["runs"][1].model)) >= len(names["seen"]) - 2


@pytest.mark.parametrize("step", [STEP, STEP.replace("nn.utils.clip_grad_value_(model.parameters(), 1e9); ", "")])
def test_a_script_of_one_round_has_its_parts_measured_or_says_that_it_ends(step, script):
    """PyTorch's examples have an option --dry-run that does this."""
    loop, _ = script(f"for x, y in loader:\n    {step}\n    break\n")
    if "clip" not in step:
        assert batches(loop, 2)
    else:
        with pytest.raises(TargetError, match="has come to its end"):
            batches(loop, 2)


def test_batches_that_can_be_read_only_once_are_repeated(script):
    """The Annotated Transformer, for example, has `run_epoch(data_gen(V, 30, 20), ...)`."""
    loop, names = script(f"""
        def epoch(batches):
            for count, state in enumerate(batches):
                seen.append((count, float(state)))
                {UPDATE}
        epoch(torch.full((1, 1), float(n)) for n in range(4))
    """)
    names["seen"].clear()
    batches(loop, 9)
    batches(loop, 9)
    assert names["seen"][:6] == [*([*enumerate(range(4))][2:]), *enumerate(range(4))]


@pytest.mark.parametrize("head", ["for state in made():", "for count, (state, _) in enumerate(loader):"])
def test_a_batch_that_the_loop_passes_over_is_a_step(head, script):
    """For example, the last batch of a text is shorter."""
    loop, names = script(f"""
        def made():
            yield from (torch.full((1, 1), float(n)) for n in range(0, 64, 8))
        {head}
            if int(state[0]) == 56:
                continue
            seen.append(int(state[0]))
            {UPDATE}
    """)
    names["seen"].clear()
    batches(loop, 8)
    assert len(names["seen"]) >= 7
    assert set(names["seen"]) == set(range(0, 56, 8))


@pytest.mark.parametrize("head", ["for x, y in loader:", "for count in range(200):\n    x, y = numbers, 2 * numbers"])
def test_an_update_of_gradients_that_no_backward_pass_made_ends_a_round(head, script):
    """For example, ``torch.func`` computes gradients of single samples."""
    loop, names = script(f"""
def loss_of(parameters, x, y):
    return (torch.func.functional_call(model, parameters, (x,)) - y).abs().mean()
{head}
    given = {{name: p.detach() for name, p in model.named_parameters()}}
    gradients = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(given, x, y)
    for name, p in model.named_parameters():
        p.grad = gradients[name].mean(0)
    optimizer.step()
    seen.append(float(model.weight))
""")
    names["seen"].clear()
    batches(loop, 8)
    assert len(set(names["seen"])) == 8
    for _ in range(3):
        batches(loop, 8)
    assert len(names["seen"]) == 32, "more than a loop may pass over"


def test_an_optimizer_may_call_its_closure_several_times_in_a_round(script):
    loop, _ = script("""
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
        def closure():
            optimizer.zero_grad()
            loss = (model(numbers / 64) - 1).square().mean()
            loss.backward()
            return loss
        for epoch in range(400):
            optimizer.step(closure)
    """)
    assert type(loop.optimizer).__name__ == "LBFGS"
    losses = batches(loop, 8)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("made", ["for one in (optimizer, other): one.step()", "optimizer.step(); other.step()"])
def test_updates_by_one_statement_are_of_one_round(made, script):
    second = "second = nn.Linear(1, 1)\nother = torch.optim.SGD(second.parameters(), lr=1e-4)\n"
    step = "    seen.append(count)\n    second(model(numbers)).mean().backward()\n"
    loop, names = script(f"{second}for count in range(9):\n{step}    {made}\n")
    batches(loop, 12)
    assert (names["seen"], len(loop.optimizers)) == ([*range(9), *range(5)], 2)


def test_what_a_round_does_beside_its_step_is_timed(script):
    loop, _ = script("""
        import time
        count = 0
        def evaluate():
            with torch.no_grad():
                model(numbers)
            time.sleep(0.02)
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += 1
            if count % 2 == 0:
                evaluate()
    """)
    assert loop.step is None, "its parts are measured"
    times = WholeRounds(loop.whole_round, lambda: None).times()
    assert times.rounds > 8
    assert times.round_ms > 9
    assert times.step_ms < times.round_ms / 2
    left, *others = times.left_out
    assert sum(one.share for one in others) < 0.1, "counting takes next to nothing"
    assert left.text == "if count % 2 == 0: …"
    assert left.evaluates
    assert left.share > 0.5


def test_an_evaluation_in_the_function_that_the_loop_calls_is_priced(script):
    loop, _ = script("""
        import time
        def train(x, y):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                model(numbers)
                time.sleep(0.02)
            return loss.item()
        for x, y in loader:
            losses = [train(x, y)]
            time.sleep(0.005)
    """)
    times = WholeRounds(loop.whole_round, lambda: None).times()
    assert times.step_ms < times.round_ms / 2
    evaluation, wait, *_ = times.left_out
    assert (evaluation.text, evaluation.evaluates) == ("with torch.no_grad(): …", True)
    assert evaluation.share > 0.5
    assert (wait.text, wait.evaluates) == ("time.sleep(0.005)", False)


def test_an_evaluation_longer_than_there_is_time_for_takes_most_of_the_rounds(script, monkeypatch):
    loop, _ = script("""
        import time
        for count, (x, y) in enumerate(loader):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if count % 4 == 3:
                time.sleep(60)
    """)
    monkeypatch.setattr(rounds, "WHOLE_ROUNDS_S", 1.0)
    times = WholeRounds(loop.whole_round, lambda: None).times()
    assert times.rounds * times.round_ms > 500
    assert [left.text for left in times.left_out] == ["if count % 4 == 3: …"]


def test_a_forward_pass_with_a_part_without_gradients_is_no_evaluation(script):
    """In MoCo, for example, the second encoder gets no gradients."""
    loop, _ = script("""
        class Pair(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.other = nn.Linear(1, 1), nn.Linear(1, 1).requires_grad_(False)
            def forward(self, x):
                with torch.no_grad():
                    key = self.other(x)
                return self.one(x) - key
        model = Pair()
        optimizer = torch.optim.SGD(model.one.parameters(), lr=1e-4)
        for x, y in loader:
            output = model(x)
            loss = (output - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """)
    assert not [one for one in WholeRounds(loop.whole_round, lambda: None).times().left_out if one.evaluates]


def test_a_round_that_fails_has_no_times(script):
    loop, names = script(
        f"for x, y in loader:\n    {STEP}\n    seen.index('here') if len(seen) > 9 else seen.append(1)\n"
    )
    names["seen"] += [2] * 9
    assert WholeRounds(loop.whole_round, lambda: None).times() is None


# --- the samples that a step is counted with, where what the loop goes through does not show them -------------

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
