"""``prepare`` returns the same objects, in any number and order; a plain loop's checkpoints fit them."""

import copy

import pytest
import torch
from compiled_models import Layers, own_blocks
from exported_module import plain_losses
from model_structures import exported
from proposals import CATALOG
from saved import through_disk
from torch import nn
from torch._dynamo.utils import counters
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import advisor
from advisor.step.tuning import Tuning

FOREACH = {"optimizer.implementation": "foreach"}
COMPILED = {"compile.mode": "default", "model.memory_format": "channels_last"}


class Net(nn.Module):
    """A model with parts that users add: an attribute, a method, tied weights, a buffer, dropout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(7, 8)
        self.norm, self.drop, self.head = nn.BatchNorm1d(8), nn.Dropout(0.0), nn.Linear(8, 7, bias=False)
        self.head.weight = self.embed.weight
        self.note = "mine"

    def forward(self, tokens, scale=1.0):
        return self.head(self.drop(self.norm(self.embed(tokens)))) * scale

    def generate(self, tokens, count):
        for _ in range(count):
            tokens = self(tokens).argmax(-1)
        return tokens


TOKENS = torch.arange(7)


def batches(count=4):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(7, (16,), generator=generator) for _ in range(count)]


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=0.05, **options)


def loader(size=8, samples=24):
    return DataLoader(TensorDataset(torch.arange(samples) % 7), batch_size=size)


def train(model, optimizer, data=None):
    for tokens in data or batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), (tokens + 1) % 7).backward()
        optimizer.step()


# --- any number, in any order ---------------------------------------------------------------------------------


def test_everything_comes_back_in_its_place_and_is_still_itself():
    model, other = Net(), Net()
    optimizer, second = adamw(model), torch.optim.SGD(other.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    first, validation, unknown = loader(), loader(4), object()
    given = (schedule, first, other, optimizer, unknown, None, second, model, validation)
    back = Tuning({**FOREACH, "data.num_workers": 1}).prepare(*given)
    assert [have is want for have, want in zip(back, given, strict=True)] == [True, False, *[True] * 6, False]
    assert [optimizer.param_groups[0]["foreach"], second.param_groups[0]["foreach"]] == [True, True]
    assert [(made.num_workers, made.batch_size) for made in (back[1], back[-1])] == [(1, 8), (1, 4)]


def test_only_the_first_loader_gets_another_batch_size_also_of_those_that_come_later():
    tuning = Tuning({"data.num_workers": 1, "data.batch_size": 12})
    _, _, first, validation = tuning.prepare(model := Net(), adamw(model), loader(), loader(4))
    later = tuning.prepare(loader(4))
    found = [(made.num_workers, made.batch_size) for made in (first, validation, later)]
    assert found == [(1, 12), (1, 4), (1, 4)]


def test_a_model_with_two_optimizers_and_an_optimizer_with_two_models():
    model, encoder = Net(), nn.Linear(3, 3)
    first = torch.optim.SGD([*model.embed.parameters(), *encoder.parameters()], lr=0.1, momentum=0.9)
    second = torch.optim.AdamW(model.norm.parameters())
    Tuning({**FOREACH, "precision.weights": "bfloat16"}).prepare(model, encoder, first, second)
    assert {parameter.dtype for parameter in (*model.parameters(), *encoder.parameters())} == {torch.bfloat16}
    assert [first.param_groups[0]["foreach"], second.param_groups[0]["foreach"]] == [True, True]


def test_a_module_without_tensors_beside_a_model_is_no_model():
    loss, model = nn.CrossEntropyLoss(), Net()
    Tuning({"precision.autocast": "bfloat16"}).prepare(loss, model, adamw(model))
    assert loss._compiled_call_impl is None


def test_an_optimizer_that_cannot_be_changed_is_left_as_it_is_with_the_reason():
    class OwnStep(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    model, other = Net(), Net()
    odd, usual = OwnStep(model.parameters(), lr=0.1), adamw(other)
    with pytest.warns(UserWarning, match=r"optimizer.implementation: foreach is left out: OwnStep has a step"):
        Tuning(FOREACH).prepare(model, odd, other, usual)
    assert (odd.param_groups[0]["foreach"], usual.param_groups[0]["foreach"]) == (None, True)


@pytest.mark.compile
@pytest.mark.parametrize(("recipe_id", "value"), [("checkpointing", "blocks"), ("compile_scope", "regional")])
def test_what_is_about_blocks_is_left_out_for_the_model_that_has_none(recipe_id, value, eager_backend, fresh_compiler):
    """For example, a momentum encoder's projector, or a generator beside its critic, has no blocks."""
    layers = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)]
    deep, flat = nn.Sequential(*layers, nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD([*deep.parameters(), *flat.parameters()], lr=0.1)
    with pytest.warns(UserWarning, match=f"{value} is left out: Sequential repeats no block"):
        assert Tuning({CATALOG[recipe_id].key: value}).prepare(deep, flat, optimizer) == (deep, flat, optimizer)
    assert exported(recipe_id, value, flat, optimizer) is flat
    changed = [vars(block).get("forward") or block._compiled_call_impl for block in (*deep, flat)]
    assert [one is not None for one in changed] == [True, True, True, False, False]


# --- a compiled model -----------------------------------------------------------------------------------------


@pytest.fixture
def compiled(eager_backend, fresh_compiler):
    model = Net()
    return (*Tuning(COMPILED).prepare(model, adamw(model)), model)


@pytest.mark.compile
def test_a_compiled_model_is_the_model(compiled):
    model, optimizer, given = compiled
    assert model is given
    assert isinstance(model, Net)
    assert model.note == "mine"
    assert model.head.weight is model.embed.weight
    assert list(model.state_dict()) == list(Net().state_dict())
    train(model, optimizer)
    assert counters["frames"]["ok"] > 0
    assert model.eval().generate(TOKENS, 3).shape == (7,)


@pytest.mark.compile
def test_hooks_of_a_compiled_model_run_once_each(compiled):
    model, optimizer, _ = compiled
    seen = []
    model.register_forward_hook(lambda *_: seen.append("forward"))
    model.register_forward_pre_hook(lambda *_: seen.append("before"))
    model.register_full_backward_hook(lambda *_: seen.append("backward"))
    model.register_state_dict_post_hook(lambda *_: seen.append("saved"))
    train(model, optimizer, data=batches(1))
    model.state_dict()
    assert seen == ["before", "forward", "backward", "saved"]


@pytest.mark.compile
def test_copies_of_a_compiled_model_have_plain_names_and_weights_of_their_own(compiled):
    model, optimizer, _ = compiled
    average = AveragedModel(model)
    train(model, optimizer)
    average.update_parameters(model)
    copied = copy.deepcopy(model)
    assert list(copied.state_dict()) == list(Net().state_dict())
    torch.testing.assert_close(average.module.state_dict(), copied.state_dict())
    with torch.no_grad():
        copied.embed.weight.zero_()
    assert not copied.eval()(TOKENS).any()
    assert model.eval()(TOKENS).any()
    Net().load_state_dict(through_disk(average.module.state_dict()))


@pytest.mark.compile
def test_decoding_with_a_cache_is_not_compiled(eager_backend, fresh_compiler):
    class Decoder(Net):
        def forward(self, tokens, past_key_values=None):
            return super().forward(tokens)

    model = Tuning(COMPILED).prepare(Decoder())
    model(TOKENS, past_key_values=())
    assert counters["frames"]["ok"] == 0
    model(TOKENS)
    assert counters["frames"]["ok"] == 1


@pytest.mark.compile
def test_a_model_with_a_compile_method_of_its_own(eager_backend, fresh_compiler):
    class LikeKeras(Net):
        def compile(self, optimizer, loss):
            raise AssertionError

    model = Tuning(COMPILED).prepare(LikeKeras())
    model(TOKENS)
    assert counters["frames"]["ok"] == 1


@pytest.mark.compile
def test_a_model_that_its_owner_compiled_is_tuned_inside_and_loads_what_it_saved(monkeypatch):
    modes, usual = [], torch.compile
    images = nn.Sequential(nn.Conv2d(3, 8, 3))

    def noted(inner, **options):
        modes.append(options["mode"])
        return usual(inner, **options)

    compiled = torch.compile(images, mode="reduce-overhead")
    saved = compiled.state_dict()
    monkeypatch.setattr(torch, "compile", noted)
    for settings in ({}, {"compile.mode": "default"}):
        prepared = Tuning({"model.memory_format": "channels_last", **settings}).prepare(compiled)
        assert prepared is images
        assert images[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert modes == ["reduce-overhead", "default"]
    images.load_state_dict(saved)
    assert list(images.state_dict()) == ["0.weight", "0.bias"]
    prepared = Tuning({"compile.mode": "none"}).prepare(compiled)
    assert prepared._compiled_call_impl is None


# --- twice ----------------------------------------------------------------------------------------------------


@pytest.mark.compile
def test_a_model_that_is_prepared_again_keeps_its_compiled_code_and_takes_the_new_optimizer(compiled, eager_backend):
    tuning = Tuning({**COMPILED, **FOREACH})
    model = own_blocks()
    tuning.prepare(model, adamw(model))
    code = model._compiled_call_impl
    second = adamw(model)
    back, optimizer, data = tuning.prepare(model, second, DataLoader(torch.ones(4, 8)))
    assert (back is model, optimizer is second, data.batch_size) == (True, True, 1)
    assert model._compiled_call_impl is code
    assert second.param_groups[0]["foreach"] is True
    assert tuning.prepare(model) is model
    assert tuning.train_step(model, second, lambda model, batch: model(batch).sum())


def test_a_model_for_inference_can_be_trained_later():
    tuning = Tuning({"infer.grad": "no_grad", **FOREACH})
    model = tuning.prepare(Net())
    model, optimizer = tuning.prepare(model, adamw(model))
    assert tuning.train_step(model, optimizer, lambda model, batch: model(batch).sum())


def test_parts_of_a_model_that_are_given_with_it_stay_parts():
    model = Layers([nn.Linear(8, 8)])
    Tuning({"precision.weights": "bfloat16"}).prepare(model, model.head)
    assert model.head.weight.dtype is torch.bfloat16


# --- adapters -------------------------------------------------------------------------------------------------


def with_adapters(prepare=lambda *objects: objects):
    """A model with LoRA adapters of peft, trained as a loop does: what is saved, and the frozen weights."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = own_blocks()
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["a", "b"], init_lora_weights=False))
    frozen = {name: value.clone() for name, value in model.named_parameters() if not value.requires_grad}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    model, optimizer = prepare(model, optimizer)
    for seed in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
        optimizer.step()
    assert all(torch.equal(value, frozen[name]) for name, value in model.named_parameters() if name in frozen)
    return peft.get_peft_model_state_dict(model), model


@pytest.mark.process
def test_adapters_train_and_merge_as_in_a_plain_loop(eager_backend, fresh_compiler):
    expected, plain = with_adapters()
    settings = {"compile.mode": "default", "memory.activation_checkpointing": "blocks", "model.pad_to_multiple": 3}
    found, model = with_adapters(Tuning({**settings, **FOREACH}).prepare)
    assert counters["frames"]["ok"] > 0
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    inputs = torch.ones(2, 8)
    merged, plainly = model.merge_and_unload(), plain.merge_and_unload()
    torch.testing.assert_close(merged(inputs), plainly(inputs))
    assert list(merged.state_dict()) == list(own_blocks().state_dict())


# --- modules of TorchScript, which no recipe can look into ----------------------------------------------------


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:FutureWarning")


class Convolving(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), torch.jit.script(nn.BatchNorm2d(4))

    def forward(self, x):
        x = torch.relu(self.norm(self.convolution(x)))
        return (x * torch.sigmoid(x) + 1.0).mean((2, 3))


def made_alike(make):
    torch.manual_seed(0)
    return make()


MAKERS = {
    "script": lambda: torch.jit.script(Convolving()),
    "script inside": Convolving,
    "script in a row": lambda: nn.Sequential(torch.jit.script(Convolving())),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.filterwarnings("ignore:.*is left out.*TorchScript:UserWarning")
def test_a_model_with_torchscript_trains_the_same_under_settings_that_trace(name, tmp_path):
    path = tmp_path / "tuned.yaml"
    path.write_text("model.conv_bias_before_norm: false\n", encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(4, 3, 8, 8, generator=generator), torch.arange(4)) for _ in range(4)]
    plain, tuned = (made_alike(MAKERS[name]) for _ in range(2))
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (plain, tuned)]
    tuning = advisor.load(path)
    tuned, _ = tuning.prepare(tuned, optimizers[1])
    step = tuning.train_step(tuned, optimizers[1], nn.functional.cross_entropy)
    expected = plain_losses(plain, optimizers[0], data)
    assert [step(batch).item() for batch in data] == pytest.approx(expected, rel=1e-5)
    assert tuned.eval()(data[0][0]).sum().item() == pytest.approx(plain.eval()(data[0][0]).sum().item(), rel=1e-4)
