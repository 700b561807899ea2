from dataclasses import dataclass

import pytest
import torch
from named_models import one_step
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from advisor import Workload
from advisor.errors import TargetError
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, TargetSpec
from advisor.step.step import make_step
from advisor.trial.measurement.draws import probe_batches
from advisor.workloads.normalise import normalise


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x)


class Siamese(Net):
    def forward(self, left, right):
        return self.head(left) - self.head(right)


@dataclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor


class OnSamples(Net):
    def forward(self, sample):
        return self.head(sample.x)


class Example(Net):
    example_input_array = torch.ones(5, 6)


class Closed(nn.Module):
    """Without a layer whose inputs could be told."""

    def forward(self, x):
        return x


class Items:
    """Batches by their index, as a Keras ``Sequence`` has them, or samples: nothing says which."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return batch()


class Stream(IterableDataset):
    def __iter__(self):
        yield from ((torch.ones(6), 1) for _ in range(10))


def spec(**changes):
    return TargetSpec("t:build", "/", **changes)


def batch(size=4):
    return torch.ones(size, 6), torch.zeros(size, dtype=torch.int64)


def loader(size=4):
    return DataLoader(TensorDataset(*batch(16)), batch_size=size)


def of_model(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def of_output(output, target):
    return nn.functional.cross_entropy(output, target)


def steps(loop):
    """Whether a step of the loop runs and gives a number."""
    return bool(torch.isfinite(one_step(loop)).all())


# --- each shape that build() may return -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", [None, Mode.TRAIN])
def test_a_module_with_an_input_shape(dtype, mode):
    loop = normalise(Net().to(dtype), spec(input_shape=(7, 6), mode=mode))
    assert (loop.mode, loop.data.shape, loop.batch_size) == (mode or Mode.INFER, (7, 6), 7)
    assert isinstance(loop.optimizer, torch.optim.SGD) is (mode is Mode.TRAIN)
    assert loop.data.dtype == dtype
    assert "random inputs" in loop.notes[0]
    assert steps(loop)
    assert normalise(Net(), spec(input_shape=(7, 6), batch_size=3)).data.shape == (3, 6)


@pytest.mark.parametrize("name", ["places", None])
def test_an_embedding_model_gets_token_ids(name):
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 3))
    model.register_parameter(name or "own", name and nn.Parameter(torch.zeros(9, 6)))  # comes before the layers'
    loop = normalise(model, spec(input_shape=(4, 9)))
    assert (loop.data.dtype, loop.data.shape) == (torch.int64, (4, 9))
    assert 0 <= loop.data.min() <= loop.data.max() < 11


def test_a_modules_own_example():
    loop = normalise(Example(), spec(batch_size=2))
    assert loop.data.shape == (2, 6)
    assert "example_input_array" in loop.notes[0]


SHAPES = {
    "model, batch": lambda: (Net(), batch()),
    "model, loader": lambda: (Net(), loader()),
    "model, function": lambda: (Net(), batch),
    "model, batch, loss": lambda: (Net(), batch(), of_output),
    "model, loader, loss of the model": lambda: (Net(), loader(), of_model),
    "four": lambda: [Net(), loader(), of_output, torch.optim.AdamW],
    "dict": lambda: {"model": Net(), "data": batch(), "loss": of_output, "optimizer": torch.optim.AdamW},
    "workload": lambda: Workload(Net(), data=loader(), loss=of_model, optimizer=torch.optim.AdamW),
    "dict batch": lambda: (Net(), {"x": torch.ones(4, 6), "labels": torch.zeros(4, dtype=torch.int64)}),
    "several inputs": lambda: (Siamese(), (torch.ones(4, 6), torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64))),
    "dataclass batch": lambda: (OnSamples(), Sample(*batch()), lambda model, one: of_output(model(one), one.y)),
}


@pytest.mark.parametrize("build", SHAPES.values(), ids=SHAPES)
def test_what_carries_targets_or_a_loss_is_trained_and_can_be_measured_for_inference_or_at_a_size(build):
    loop, infers, sized = (normalise(build(), spec(**asked)) for asked in ({}, {"mode": Mode.INFER}, {"batch_size": 2}))
    assert loop.mode is Mode.TRAIN
    assert loop.batch_size == 4 if loop.make_batch is None else 32
    assert isinstance(loop.optimizer, torch.optim.Optimizer)
    assert (infers.mode, infers.optimizer) == (Mode.INFER, None)
    assert sized.batch_size == 2
    assert all(map(steps, (loop, infers, sized)))


def test_data_from_a_function_is_asked_for_the_size():
    asked = []
    loop = normalise((Net(), lambda size: (asked.append(size), batch(size))[1]), spec(batch_size=5))
    assert asked == [5]
    assert loop.make_batch(9)[0].shape == (9, 6)


# --- the mode -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "mode"),
    [
        (Workload(Net(), data=torch.ones(4, 6)), Mode.INFER),
        (Workload(Net(), data=DataLoader(Stream(), batch_size=4)), Mode.TRAIN),
        (Workload(Net(), data=torch.ones(4, 6), optimizer=torch.optim.SGD), Mode.TRAIN),
        (Workload(Net(), data=batch()), Mode.TRAIN),
        (Workload(Net().eval(), data=batch()), Mode.INFER),
        (Workload(Net().requires_grad_(False), data=batch()), Mode.INFER),
        (Workload(Net(), data=batch(), loss=of_output, mode="infer"), Mode.INFER),
        (Workload(torch.jit.freeze(torch.jit.script(Net().eval())), data=torch.ones(4, 6)), Mode.INFER),
    ],
)
def test_the_mode_is_what_the_parts_suggest(workload, mode):
    assert normalise(workload, spec()).mode is mode


# --- optimizer, loss, current settings ------------------------------------------------------------------------


def test_an_optimizer_is_kept_and_a_function_called_with_what_can_be_trained():
    model = Net()
    given = torch.optim.Adam(model.parameters())
    assert normalise((model, batch(), None, given), spec()).optimizer is given
    model.head.bias.requires_grad_(False)
    made = normalise((model, batch(), None, torch.optim.Adam), spec()).optimizer
    assert [len(group["params"]) for group in made.param_groups] == [1]


def test_an_optimizer_of_another_model_is_said():
    strange = torch.optim.SGD(Net().parameters())
    assert "holds no parameter of the model" in normalise((Net(), batch(), of_output, strange), spec()).notes[0]
    assert any("SGD" in note for note in normalise((Net(), batch()), spec()).notes), "as one that is assumed"
    assert normalise((Net(), batch(), of_output, torch.optim.SGD), spec()).notes == []


@pytest.mark.parametrize(
    ("loss", "mode", "text"),
    [
        (of_output, Mode.TRAIN, "of_output"),
        (None, Mode.TRAIN, "chosen by the outputs and targets"),
        (None, Mode.INFER, "none"),
    ],
)
def test_the_loss_is_described(loss, mode, text):
    assert normalise((Net(), batch(), loss), spec(mode=mode)).loss_text == text


@pytest.mark.parametrize(
    ("options", "settings"),
    [({}, {"compile.mode": "default"}), ({"mode": "reduce-overhead"}, {"compile.mode": "reduce-overhead"})],
)
def test_a_compiled_model_is_measured_as_the_setting_that_compiles_it(options, settings):
    model = nn.Linear(4, 2)
    loop = normalise((torch.compile(model, **options), torch.randn(3, 4)), spec())
    assert loop.model is model
    assert loop.current == settings
    in_place = nn.Linear(4, 2)
    in_place.compile(**options)
    loop = normalise({"model": in_place, "data": torch.randn(3, 4), "current": {"compile.mode": "none"}}, spec())
    assert loop.model is in_place
    assert in_place._compiled_call_impl is None
    assert loop.current == {**settings, "compile.mode": "none"}  # what is declared has the last word


@pytest.mark.parametrize("options", [{"backend": "eager"}, {"options": {"epilogue_fusion": False}}, {"dynamic": True}])
def test_a_model_that_is_compiled_as_no_setting_says_stays_so(options):
    compiled = torch.compile(nn.Linear(4, 2), **options)
    loop = normalise((compiled, torch.randn(3, 4)), spec())
    assert (loop.model, loop.current) == (compiled, {})
    assert "no setting matches its compile backend" in loop.notes[0]


def test_a_mapping_with_labels_gives_a_plain_model_its_target():
    loop = normalise((Net(), {"x": torch.ones(4, 6), "labels": torch.full((4,), 2)}), spec())
    with torch.no_grad():
        expected = nn.functional.cross_entropy(loop.model(loop.data["x"]), loop.data["labels"])
    assert one_step(loop) == expected


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        (None, "the target returned nothing (None)", "(model, data)"),
        ((Net(), 1, 2, 3, 4), "a tuple of 5", "Workload"),
        ((batch(), "net"), "model is a str, not an nn.Module", "(model, data)"),
        ((lambda batch: 0, batch()), "model is a function", "Workload(step=step"),
        ((Net(), batch(), 3), "loss is an int", "loss(output, target)"),
        ((Net(), batch(), nn.CrossEntropyLoss), "loss is the class CrossEntropyLoss, not", "an instance"),
        ((Net(), batch()[0].numpy()), "data is a ndarray, which is not a batch", "torch.from_numpy"),
        ((Net(), Items(), of_output), "data is an Items, which is not a batch", "DataLoader(dataset"),
        ((Net(), batch(), None, lambda parameters: 3), "optimizer is an int", "torch.optim.Optimizer"),
        ((Net(), batch(), of_output, torch.optim.LBFGS), "LBFGS calls the loss itself", "step=step"),
        ((Net().requires_grad_(False), batch(), of_output), "no parameter that requires a gradient", "--mode infer"),
        (Workload(Net(), data=batch(), mode="evaluate"), "'evaluate' is not a mode", "train or infer"),
        (Closed(), "its inputs cannot be inferred", "--input SHAPE"),
        (Net, "returned the class Net", "Net(...)"),
        ({"encoder": Net(), "decoder": Net()}, "the unknown keys encoder", "Several models need a step of your own"),
    ],
)
def test_errors_say_what_was_returned_and_what_may_be(value, message, hint):
    with pytest.raises(TargetError) as error:
        normalise(value, spec())
    assert message in error.value.message
    assert hint in error.value.hint


def test_a_batch_size_for_a_loader_with_batches_of_its_own():
    own = DataLoader(TensorDataset(*batch(16)), batch_sampler=[[0, 1], [2, 3]])
    with pytest.raises(TargetError, match="--batch-size cannot be applied"):
        normalise((Net(), own), spec(batch_size=8))
    assert normalise((Net(), own), spec()).batch_size is None


def test_a_workload_says_what_it_clips_to():
    assert normalise(Workload(Net(), batch(), clip_grad=0.5), spec()).clip_grad == 0.5
    assert normalise({"model": Net(), "data": batch(), "max_grad_norm": 2}, spec()).clip_grad == 2.0
    assert normalise((Net(), batch()), spec()).clip_grad is None


@pytest.mark.parametrize("norm", [-1, 0, float("nan"), True, "1"])
def test_a_norm_that_nothing_can_be_clipped_to_is_refused(norm):
    with pytest.raises(ValueError, match="is not a norm to clip gradients to: give a number above 0"):
        StepPlan(mode=Mode.TRAIN, device="cpu", clip_norm=norm)


class Centres(nn.Module):
    """A loss with parameters of its own, and class weights."""

    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(3))
        self.entropy = nn.CrossEntropyLoss(weight=torch.ones(3))

    def forward(self, output, target):
        return self.entropy(output - self.centres, target)


def test_an_optimizer_that_is_made_here_trains_the_parameters_of_the_loss_too():
    loss = Centres()
    for optimizer in (None, torch.optim.AdamW):
        loop = normalise((Net(), (torch.ones(4, 6), torch.tensor([0, 1, 2, 0])), loss, optimizer), spec())
        assert loop.optimizer.param_groups[0]["params"][-1] is loss.centres
        assert not any("holds no parameter" in note for note in loop.notes)


@pytest.mark.parametrize("around", [False, True])
def test_the_modules_of_a_loss_and_the_state_of_an_optimizer_go_where_the_model_goes(around):
    centres = Centres()
    loss = (lambda output, target: 2 * centres(output, target)) if around else centres
    data = (torch.ones(4, 6), torch.tensor([0, 1, 2, 0]))
    loop = normalise((Net(), data, loss, torch.optim.Adagrad), spec())  # which makes its sums before the first step
    loop.to(torch.device("meta"))
    assert {tensor.device.type for tensor in centres.state_dict().values()} == {"meta"}
    assert loop.model.head.weight.device.type == "meta"
    states = list(loop.optimizer.state.values())
    assert {(state["sum"].device.type, state["step"].device.type) for state in states} == {("meta", "cpu")}


# --- the parts as people return them, and data that is no DataLoader -------------------------------------------

NET, LOADER = Net(), loader(8)
SGD = torch.optim.SGD(NET.parameters(), lr=0.1)
LOSS = nn.functional.cross_entropy


class OwnLoss(nn.Module):
    """A loss that is a module of the person's own."""

    def forward(self, output, target):
        return nn.functional.cross_entropy(output, target)


class AcceleratedScheduler:
    """Named and used like one, and no class of PyTorch's."""

    def step(self):
        """Do nothing."""


RETURNED = {
    "in the documented order": (NET, LOADER, LOSS, SGD),
    "the loss before the data": (NET, LOSS, LOADER, SGD),
    "the optimizer second": (NET, SGD, LOADER, LOSS),
    "the optimizer before the loss": (NET, LOADER, SGD, LOSS),
    "a module as the loss": (NET, OwnLoss(), LOADER, SGD),
    "a criterion first": (nn.CrossEntropyLoss(), NET, LOADER, SGD),
    "a scheduler too": (NET, LOADER, LOSS, SGD, StepLR(SGD, 1)),
    "another scheduler": (NET, LOADER, LOSS, SGD, ReduceLROnPlateau(SGD)),
    "usual names": {"net": NET, "train_loader": LOADER, "loss_fn": LOSS, "opt": SGD},
    "a scheduler by its kind": {"model": NET, "loader": LOADER, "loss": LOSS, "opt": SGD, "warmup": StepLR(SGD, 1)},
    "more names": {"model": NET, "train_dataloader": LOADER, "criterion": LOSS, "optim": SGD},
    "a scheduler that is wrapped": (NET, LOADER, LOSS, SGD, AcceleratedScheduler()),
}


@pytest.mark.parametrize("value", RETURNED.values(), ids=RETURNED)
def test_each_part_is_found(value):
    loop = normalise(value, spec())
    assert (loop.model, loop.data, loop.optimizer, loop.mode) == (NET, LOADER, SGD, Mode.TRAIN)
    assert loop.loss is LOSS or isinstance(loop.loss, OwnLoss | nn.CrossEntropyLoss)


def test_a_function_of_a_size_may_return_a_loader():
    loop = normalise((NET, loader, LOSS), spec(batch_size=4))
    assert (type(loop.data), loop.batch_size, loop.make_batch) == (DataLoader, 4, None)


SQUARE = nn.Linear(4, 4)


def pair():
    return torch.randn(8, 4), torch.randn(8, 4)


def near(output, target):
    return (output - target).square().mean()


@pytest.mark.parametrize(
    ("data", "loss", "kind"),
    [
        ([pair() for _ in range(3)], near, tuple),
        ([{"x": pair()[0]} for _ in range(3)], lambda model, batch: model(batch["x"]).sum(), dict),
        ([pair()[0] for _ in range(5)], lambda model, batch: near(model(batch), batch), torch.Tensor),
    ],
    ids=["tuples", "mappings", "tensors"],
)
def test_a_list_of_batches_is_read_batch_by_batch(data, loss, kind):
    loop = normalise(Workload(SQUARE, data=data, loss=loss), spec())
    batches = probe_batches(loop.data, 0)
    assert len(batches) == len(data)
    assert all(type(batch) is kind for batch in batches)
    step = make_step(loop.components(StepPlan(loop.mode, "cpu"), loop.data), loop.loss)
    assert all(bool(torch.isfinite(step(batch))) for batch in batches)


class Graph:
    """A batch that can be called, as PyTorch Geometric's ``Data`` can: it yields what it holds."""

    def __init__(self):
        self.x = torch.randn(8, 4)

    def __call__(self, *names):
        yield from vars(self).items()

    def to(self, device, **options):
        self.x = self.x.to(device, **options)
        return self


ONE_BATCH = {
    "a list of two": list(pair()),
    "a tuple": pair(),
    "a tuple of three": (*pair(), pair()[0]),
    "a list of three": [*pair(), pair()[0]],
    "parts of other forms": [list(pair()), [torch.randn(8), torch.randn(8)]],
    "input and target": [torch.randn(8, 4), torch.zeros(8)],
    "an object that can be called": Graph(),
}


@pytest.mark.parametrize("data", ONE_BATCH.values(), ids=ONE_BATCH)
def test_the_parts_of_one_batch_are_one_batch(data):
    for given in ({"loss": lambda model, batch: 0}, {"step": lambda batch: 0}):
        loop = normalise(Workload(SQUARE, data=data, **given), spec())
        assert loop.data is data
        assert loop.make_batch is None


def test_what_can_be_read_once_is_read_ahead_and_said():
    loop = normalise((SQUARE, (pair() for _ in range(3)), near), spec())
    assert len(list(loop.data)) == len(list(loop.data)) == 3
    assert any("can be read only once" in note for note in loop.notes)
    with pytest.raises(TargetError, match="yields no batch"):
        normalise((SQUARE, iter(()), near), spec())
