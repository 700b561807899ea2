"""The numerics that recipes declare: every value is compared with the same steps without it, on the CPU."""

import functools
import shutil
from importlib.util import find_spec

import pytest
import torch
from process_state import state_put_back
from proposals import CATALOG
from recipe_workload import refusal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advisor.errors import UsageError
from advisor.recipe import Components, Stage
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, Numerics
from advisor.step.device_loader import loop_loader
from advisor.step.graph import captured
from advisor.step.step import make_step
from advisor.step.tuning import apply_settings

STEPS = 5
SAMPLES = 20
WIDTH = 16
FLOAT32_TOLERANCE = 1e-3  # of the largest loss or output
HALF_TOLERANCE = 5e-2
HALF_ROUNDING = 2.0**-11  # of float16; TensorFloat-32 has the same
# Settings that take parameters or buffers out of a model.
LEAVES_STATE_OUT = {"model.conv_bias_before_norm", "model.fold_batch_norm"}
OF_WORKERS = ("persistent_workers", "prefetch")
# What cannot run here, and how that is said.
IMPOSSIBLE = {
    ("gpu_transforms", True): "the dataset's attribute transform does not end in a transform",
    ("large_batch_optimizer", "lars"): "timm is not installed",
    ("optimizer_memory", "adafactor"): "it takes the place of Adam or AdamW, not of SGD",
    ("step_graph", True): "step.cuda_graph needs a CUDA GPU",
    ("step_graph", "around_loss"): "step.cuda_graph needs a CUDA GPU",
}
OF_A_GPU = {("step_graph", True), ("step_graph", "around_loss")}
# With generated code on the CPU: tests/loops, and tests/recipes/compile, where the others are traced.
COMPILED_ELSEWHERE = ("compile", "compile_scope", "cpu_freeze")
COMPILES = (pytest.mark.compile, pytest.mark.skipif(shutil.which("g++") is None, reason="nothing can be compiled here"))


class Block(nn.Module):
    def __init__(self, *, attends=False):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True) if attends else None
        self.up, self.act, self.down = nn.Linear(WIDTH, 31), nn.ReLU(), nn.Linear(31, WIDTH)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        y = self.norm(x)
        if self.attention is not None:
            y = y + self.attention(y, y, y, need_weights=False)[0]
        return x + self.drop(self.down(torch.sigmoid(self.act(self.up(y)) * 0.5)))


class Net(nn.Module):
    """A convolution with bias, a batch norm, repeated blocks, linear layers, and dropout that drops nothing."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU()
        self.blocks = nn.Sequential(Block(attends=True), Block(attends=True))
        self.drop, self.head = nn.Dropout(0.0), nn.Linear(WIDTH, 10)

    def features(self, images):
        tokens = self.act(self.norm(self.conv(images))).flatten(2).transpose(1, 2)
        return self.drop(self.blocks(tokens)).mean(1)

    def forward(self, images):
        return self.head(self.features(images))


class Small(nn.Module):
    """Two formulas beside each other: a second or two of compiling."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(108, 10), nn.Linear(108, 10)

    def forward(self, images):
        return torch.tanh(self.one(images.flatten(1))) + torch.sigmoid(self.other(images.flatten(1)))


def components(mode, *, adam=False, make_model=Net, device="cpu"):
    torch.manual_seed(0)
    model = make_model().to(device).train(mode is Mode.TRAIN)
    make = torch.optim.AdamW if adam else functools.partial(torch.optim.SGD, momentum=0.9)
    optimizer = make(model.parameters(), lr=0.01) if mode is Mode.TRAIN else None
    data = TensorDataset(torch.randn(SAMPLES, 3, 6, 6), torch.arange(SAMPLES) % 10)
    plan = StepPlan(mode=mode, device=device, clip_norm=1.0)
    return Components(model, optimizer, DataLoader(data, batch_size=4, shuffle=True), plan, batch_size=4)


def shapes_of(model):
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def run(mode, settings=(), **options):
    """The losses of five steps, or the outputs of all batches."""
    workload = components(mode, **options)
    shapes = shapes_of(workload.model)
    apply_settings(CATALOG, workload, dict(settings))
    after = shapes_of(workload.model)
    assert after == shapes or ({*dict(settings)} & LEAVES_STATE_OUT and after.items() < shapes.items())
    step = captured(make_step(workload, nn.CrossEntropyLoss()))
    torch.manual_seed(1)
    results = []
    while len(results) < STEPS:
        results += [step(batch).detach().double().cpu() for batch in loop_loader(workload.data, workload.plan)]
        if mode is Mode.INFER:
            return torch.cat(results)
    return torch.stack(results[:STEPS])


without = functools.cache(run)  # the same steps without a setting; those that are about workers have one in both runs


def cases(device="cpu"):
    """Each recipe with each of its values in each of its modes, as far as they can run on any machine of this kind."""
    impossible = OF_A_GPU if device == "cpu" else IMPOSSIBLE.keys() - OF_A_GPU
    for recipe in CATALOG:
        if device == "cuda" and (device not in recipe.devices or recipe.stage is Stage.ENVIRONMENT):
            continue
        if recipe.expensive:
            if device == "cpu" and recipe.id in COMPILED_ELSEWHERE:
                continue
            # It takes seconds: one will do. The model repeats no block that could be compiled by itself.
            value = next(value for value in recipe.values if value not in (recipe.default, "regional"))
            mode = Mode.TRAIN if Mode.TRAIN in recipe.modes else Mode.INFER
            yield pytest.param(recipe, value, mode, id=f"{recipe.id}={value}-{mode}", marks=COMPILES)
            continue
        together = device == "cpu" and recipe.id not in OF_WORKERS  # the defaults, in a test of their own
        values = [value for value in recipe.values if not together or value != recipe.default]
        for value in values:
            for mode in [Mode.TRAIN] if recipe.id in OF_WORKERS else sorted(recipe.modes):
                if (recipe.id, value) not in impossible:
                    yield pytest.param(recipe, value, mode, id=f"{recipe.id}={value}-{mode}")


@pytest.fixture(autouse=True)
def _as_it_was():
    with state_put_back():
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", list(Mode))
def test_the_same_steps_give_the_same_numbers(mode):
    assert torch.equal(run(mode), without(mode))
    if mode is Mode.TRAIN:
        assert len(set(run(mode).tolist())) == STEPS


def check_promise(recipe, value, mode, *, device="cpu", spread=0.0):
    """Check a value's declared numerics; ``spread`` is the difference of two runs without the value."""
    if recipe.package and value != recipe.default:
        pytest.importorskip(recipe.package)
    if reason := refusal(recipe, value, components(mode, adam=recipe.id == "optimizer_memory", device=device)):
        pytest.skip(reason)
    beside = (("data.num_workers", 1),) if recipe.id in OF_WORKERS else ()
    options = {
        "adam": recipe.id == "optimizer_memory",
        "make_model": Small if recipe.expensive else Net,
        "device": device,
    }
    want = without(mode, beside, **options)
    have = run(mode, (*beside, (recipe.key, value)), **options)
    promise = Numerics.EXACT if value == recipe.default else recipe.numerics_of(value, mode)
    if promise is Numerics.CHANGED:
        assert torch.isfinite(have).all()
        return
    tolerance = HALF_TOLERANCE if recipe.roundings.get(value, 0.0) >= HALF_ROUNDING else FLOAT32_TOLERANCE
    allowed = spread if promise is Numerics.EXACT else tolerance
    assert (have - want).abs().max() <= allowed * want.abs().max()


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("stage", list(Stage))
def test_the_defaults_of_a_stage_change_nothing(stage, mode):
    recipes = [recipe for recipe in CATALOG if recipe.stage is stage and mode in recipe.modes]
    defaults = tuple((recipe.key, recipe.default) for recipe in recipes if recipe.id not in OF_WORKERS)
    assert torch.equal(run(mode, defaults), without(mode))


@pytest.mark.parametrize(("recipe", "value", "mode"), cases())
def test_a_value_keeps_its_promise(recipe, value, mode):
    check_promise(recipe, value, mode)


@pytest.mark.parametrize(("case", "words"), IMPOSSIBLE.items(), ids=[f"{name}={value}" for (name, value) in IMPOSSIBLE])
def test_what_cannot_run_says_so(case, words):
    recipe, value = CATALOG[case[0]], case[1]
    if recipe.id == "large_batch_optimizer" and find_spec("timm"):
        pytest.skip("timm is installed")
    mode = Mode.TRAIN if Mode.TRAIN in recipe.modes else Mode.INFER
    with pytest.raises((UsageError, RuntimeError, ValueError, ImportError), match=words):
        run(mode, ((recipe.key, value),))


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms ask for it
    # By default convolutions compute in TF32, so that what changes their order of summation shows much more.
    torch.backends.cudnn.allow_tf32 = False


@functools.cache
def spread(mode):
    """The relative difference of two runs of the same steps: atomic additions have no fixed order."""
    first, second = run(mode, device="cuda"), run(mode, device="cuda")
    return ((first - second).abs().max() / first.abs().max()).item()


@pytest.mark.gpu
@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("mode", list(Mode))
def test_the_same_steps_give_about_the_same_numbers_on_a_gpu(mode):
    assert spread(mode) < 1e-5


@pytest.mark.gpu
@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize(("recipe", "value", "mode"), cases("cuda"))
def test_a_value_keeps_its_promise_on_a_gpu(recipe, value, mode):
    check_promise(recipe, value, mode, device="cuda", spread=spread(mode))
