"""Where a captured step finds the numbers and objects that the loss and the model read, however they are written."""

import datetime
import random
import time
from time import monotonic_ns

import numpy as np
import own_step_loops
import pytest
from graphed_steps import Net, agree, batches, both, of_model, sgd
from places_of_numbers import PLACES, place_of


@pytest.mark.parametrize("name", PLACES)
def test_a_factor_of_the_loss_is_noticed_wherever_it_stands(name, monkeypatch, tmp_path):
    read, write = place_of(name, monkeypatch, tmp_path)
    found, step = both(
        lambda at, model, optimizer: write(1.0 if at < 6 else 2.0),
        loss=lambda model, batch: of_model(model, batch) * read(),
    )
    agree(found)
    assert step.graph.captures == 2


def loop_with(factor):
    """A loop with a step of its own, whose loss is multiplied by what ``factor`` gives."""
    model = own_step_loops.net()
    optimizer = own_step_loops.sgd(model)

    def step(batch):
        loss = model(batch).square().mean() * factor()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return own_step_loops.Loop(step, [model], [optimizer])


@pytest.mark.parametrize("name", [name for name in PLACES if name != "global by its name"])  # which is refused
def test_a_factor_in_an_own_step_is_noticed_wherever_it_stands(name, monkeypatch, tmp_path):
    read, write = place_of(name, monkeypatch, tmp_path)

    def make():
        write(1.0)
        return loop_with(read)

    step = own_step_loops.agree(
        make, change=lambda at, loop: write(1.0 if at < 6 else 2.0), data=own_step_loops.batches(16)
    )
    assert step.graph.captures == 2, step.refusal or step.patience.reason


def test_a_number_that_a_models_class_holds_is_noticed():
    class Scaled(Net):
        temperature = 1.0

        def forward(self, x):
            return super().forward(x) / self.temperature

    def prepare(model):
        model.__class__ = Scaled
        Scaled.temperature = 1.0

    def change(at, model, optimizer):
        Scaled.temperature = 1.0 if at < 6 else 2.0

    found, step = both(change, prepare=prepare)
    agree(found)
    assert step.graph.captures == 2


def test_a_rate_that_the_loss_reads_off_the_optimizer_is_noticed():
    def change(at, model, optimizer):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 if at < 6 else 0.02

    held = []

    def make(parameters):
        held.append(sgd(parameters))
        return held[-1]

    def loss(model, batch):
        return (1 + held[-1].param_groups[0]["lr"]) * of_model(model, batch)

    found, step = both(change, make=make, loss=loss)
    agree(found)
    assert step.graph.captures == 2


def taken_in_turn():
    weights = iter([1.0 + place for place in range(200)])
    return lambda model, batch: next(weights) * of_model(model, batch)


def drawn():
    generator = random.Random(0)
    return lambda model, batch: (1 + generator.random()) * of_model(model, batch)


def drawn_by_numpy():
    generator = np.random.default_rng(0)
    return lambda model, batch: (1 + generator.uniform()) * of_model(model, batch)


def read_from_a_file(path):
    path.write_text("1.0", encoding="utf-8")
    return lambda model, batch: float(path.read_text(encoding="utf-8")) * of_model(model, batch)


def read_line_by_line(path):
    path.write_text("".join(f"{1 + at}.0\n" for at in range(200)), encoding="utf-8")
    weights = path.open(encoding="utf-8")
    return lambda model, batch: float(weights.readline()) * of_model(model, batch)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (read_line_by_line, "TextIOWrapper.*, an iterator or a file"),
        (taken_in_turn, "list_iterator.*, an iterator or a file"),
        (drawn, "a random generator was used"),
        (drawn_by_numpy, "a random generator was used"),
        (read_from_a_file, "reads a file"),
    ],
)
def test_what_no_comparison_can_follow_is_not_captured(make, reason, tmp_path):
    made_of_file = make in (read_from_a_file, read_line_by_line)
    losses = [make(tmp_path / "weight") if made_of_file else make() for _ in range(2)]
    turns = iter([0, 1])

    def prepare(model):
        model.turn = next(turns)

    def loss(model, batch):
        return losses[model.turn](model, batch)

    with pytest.warns(UserWarning, match=f"without a CUDA graph.*{reason}"):
        found, step = both(data=batches(60), loss=loss, prepare=prepare)
    agree(found)
    assert step.graph.captures == 0


class Counted:
    def __init__(self):
        self.calls = 0

    def __str__(self):
        return f"{self.calls} calls"


def test_an_object_that_is_only_shown_may_change(capsys):
    """A text that decides something would have to be compared."""
    counted = Counted()

    def change(at, model, optimizer):
        counted.calls = at

    def loss(model, batch):
        if batch[0].dim() != 2:
            raise ValueError(f"a batch has rows and columns, after {counted}")
        print(f"after {counted}")
        return of_model(model, batch) * (2.0 if isinstance(batch[1], str) else 1.0)

    found, step = both(change, loss=loss)
    agree(found)
    assert step.graph.captures == 1
    assert "after 2 calls" in capsys.readouterr().out


STARTED_S, LATER_S, LATER_NS = time.time(), 3600.0, monotonic_ns() + 3600 * 10**9


class Timed:
    clock, took_s = time.perf_counter, 0.0

    @classmethod
    def is_late(cls):
        return cls.clock() > 1e8


def by_a_clock_of_its_own():
    from time import monotonic

    return 2.0 if monotonic() > 1e8 else 1.0


def with_its_seconds(measure):
    """A function that takes the time of another, as for a person to read."""

    def measured():
        began_s = time.perf_counter()
        result = measure()
        Timed.took_s = time.perf_counter() - began_s
        return result

    return measured


# Factors that a clock decides; none of these is late yet.
OF_A_CLOCK = {
    "seconds": lambda: 2.0 if time.time() - STARTED_S > LATER_S else 1.0,
    "nanoseconds": lambda: 2.0 if monotonic_ns() > LATER_NS else 1.0,
    "clock in a class": lambda: 2.0 if Timed.is_late() else 1.0,
    "imported inside": by_a_clock_of_its_own,
    "date": lambda: 2.0 if datetime.datetime.now().year < 2000 else 1.0,
    "date as a text": lambda: 2.0 if time.strftime("%Y") < "2000" else 1.0,
}
# Factors that none decides.
OF_NO_CLOCK = {
    "measured": with_its_seconds(lambda: 1.0),
    "asked never": lambda: time.time() if STARTED_S < 0 else 1.0,
    "date that was": lambda: datetime.datetime.fromtimestamp(STARTED_S, datetime.UTC).year / 2000,
}


@pytest.mark.parametrize("name", OF_A_CLOCK | OF_NO_CLOCK)
def test_a_loss_that_a_clock_decides_is_not_captured(name):
    factor = (OF_A_CLOCK | OF_NO_CLOCK)[name]
    clock = time.perf_counter
    found, step = both(loss=lambda model, batch: of_model(model, batch) * factor(), data=batches(20))
    agree(found)
    assert step.graph.captures == (name in OF_NO_CLOCK)
    assert "reads a clock" in step.patience.reason or name in OF_NO_CLOCK
    assert time.perf_counter is clock, "it was another for a try"


@pytest.mark.parametrize("name", OF_A_CLOCK | {"measured": None, "asked never": None})
def test_an_own_step_that_asks_a_clock_is_refused(name):
    factor = (OF_A_CLOCK | OF_NO_CLOCK)[name]

    step = own_step_loops.agree(lambda: loop_with(factor))
    assert step.graph.captures == (name == "asked never")
    assert bool(step.refusal) == (name != "asked never")
