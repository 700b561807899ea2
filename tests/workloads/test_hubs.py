"""Models by the names that their libraries give them, and objects of those libraries. Nothing is downloaded."""

import sys
from pathlib import Path

import forked
import pytest
import torch
from named_models import TINY, failure, load, one_step, refuse_the_network
from torch import nn

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.workloads.normalise import normalise

pytestmark = pytest.mark.process  # frameworks take seconds to import, and some targets need a process of their own

OBJECTS = Path(__file__).parent

_no_network = pytest.fixture(autouse=True)(refuse_the_network)


def own(name, **options):
    return load(f"objects.py:{name}", directory=OBJECTS, **options)


# --- timm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "options", "shape"),
    [
        ("timm:test_resnet", (), (2, 3, 160, 160)),
        ("timm:test_resnet", ("in_chans=1",), (2, 1, 160, 160)),
        ("timm:test_vit", ("img_size=96",), (2, 3, 96, 96)),
    ],
)
def test_a_timm_model_trains_on_images_of_its_own_size(target, options, shape):
    pytest.importorskip("timm")
    loop = load(target, *options, batch_size=2)
    assert loop.mode is Mode.TRAIN
    assert [tuple(t.shape) for t in loop.data] == [shape, (2,)]
    assert torch.isfinite(one_step(loop))


def test_a_tag_says_the_size_and_the_classes_of_its_weights():
    pytest.importorskip("timm")
    plain, tagged = load("timm:convnext_atto", batch_size=1), load("timm:resnetv2_50x1_bit.goog_in21k", batch_size=1)
    assert plain.model.num_classes == 1000
    assert tagged.model.num_classes == 21843


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("timm:resnet5O", (), "resnet50"),
        ("timm:test_resnet", ("depht=3",), "'depht'"),
        ("timm:test_resnet", ("--verbose",), "key=value"),
        *((target, (), f"{target!r} is not a target.") for target in (":", ":build", "..:build")),
    ],
)
def test_an_unknown_name_or_option_is_answered_with_the_nearest_or_the_form(target, options, said):
    pytest.importorskip("timm")
    error = failure(target, *options)
    assert said in f"{error.message} {error.hint}"


@pytest.mark.parametrize(
    ("target", "shape", "sizes"), [("timm:test_resnet", (224, 224), 4), ("hf:bert", (2, 3, 8, 8), 2)]
)
def test_a_shape_of_other_sizes_than_a_batch_has_is_refused(target, shape, sizes, monkeypatch):
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    pytest.importorskip({"hf": "transformers"}.get(prefix := target.partition(":")[0], prefix))
    error = failure(target, *(TINY if prefix == "hf" else ()), input_shape=shape)
    assert error.message.endswith(f"has {len(shape)} sizes, but a batch of this model has {sizes}.")
    assert f"Write all {sizes}" in error.hint


@pytest.mark.parametrize(("target", "package"), [("timm:resnet18", "timm"), ("hf:bert", "transformers")])
def test_a_library_that_is_not_installed_is_named(monkeypatch, target, package):
    monkeypatch.setitem(sys.modules, package, None)
    error = failure(target)
    assert f"the package {package}, which is not installed" in error.message
    assert f"pip install {package}" in error.hint


# --- objects --------------------------------------------------------------------------------------------------


def test_a_trainers_own_step_loader_and_optimizer():
    pytest.importorskip("transformers")
    loop = own("trainer")
    assert (loop.mode, loop.batch_size, type(loop.optimizer)) == (Mode.TRAIN, 4, torch.optim.AdamW)
    assert type(loop.loader) is torch.utils.data.DataLoader
    assert torch.isfinite(one_step(loop))
    assert loop.clip_grad == 1.0
    assert loop.current["precision.autocast"] == "bfloat16"
    assert loop.current["compile.mode"] == "reduce-overhead"


@pytest.mark.parametrize(("name", "labels"), [("tiny_bert", (2, 8)), ("bert_classifier", (2,)), ("lora", (2, 8))])
def test_configurations_and_models(name, labels):
    pytest.importorskip("peft" if name == "lora" else "transformers")
    loop = own(name, input_shape=(2, 8))
    assert loop.mode is Mode.TRAIN
    assert loop.data["labels"].shape == labels
    assert torch.isfinite(one_step(loop))


def test_a_yolo_trains_by_its_own_loss(monkeypatch):
    monkeypatch.setenv("YOLO_OFFLINE", "true")  # its import by the person's own file looks for a network
    pytest.importorskip("ultralytics")
    loop = own("yolo", input_shape=(2, 3, 64, 64))
    assert loop.mode is Mode.TRAIN
    assert loop.batch_size == 2
    assert torch.isfinite(one_step(loop))
    assert "yolov8-seg" in failure("ultralytics:yolov8-sge").hint
    assert "such as" in failure("ultralytics:nothing-like-it").hint
    by_weights = load("ultralytics:yolov8n.pt", input_shape=(1, 3, 64, 64))  # which are not on disk
    assert type(by_weights.model) is type(loop.model)
    segments = load("ultralytics:yolov8n-seg", input_shape=(1, 3, 64, 64))
    assert segments.data["masks"].shape == (1, 16, 16)
    assert torch.isfinite(one_step(segments))


def test_a_graph():
    pytest.importorskip("torch_geometric")
    loop = own("graph")
    assert loop.mode is Mode.TRAIN
    assert loop.data[0].shape == (1024, 16)
    assert loop.data[2].max() < 7
    assert torch.isfinite(one_step(loop))


def test_exported_files(tmp_path):
    net = nn.Sequential(nn.Linear(6, 3)).eval()
    torch.export.save(torch.export.export(net, (torch.ones(2, 6),)), tmp_path / "net.pt2")
    torch.jit.script(net).save(tmp_path / "net.pt")
    for target, options in (("net.pt2", {}), ("net.pt", {"input_shape": (2, 6)})):
        loop = load(target, directory=tmp_path, **options)
        assert loop.mode is Mode.INFER
        assert not loop.model.training
        assert loop.model.train().training  # as the recipes' traces do
        loop.model.eval()
        assert one_step(loop).shape[1] == 3

    assert "--input" in failure("net.pt", directory=tmp_path).hint


class Scaled(nn.Module):
    def forward(self, values, shift, *, scale):
        return values * scale + shift


def test_exported_files_that_are_no_use(tmp_path):
    for name in ("cut.pt2", "cut.pt"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 and no more")
    torch.save({"weight": torch.ones(2)}, tmp_path / "state.pt")
    assert "cannot be read" in failure("cut.pt2", directory=tmp_path).message
    assert "cannot be read" in failure("cut.pt", directory=tmp_path).message
    assert "state dict" in failure("state.pt", directory=tmp_path).hint
    assert "there is no file" in failure("gone.pt2", directory=tmp_path).message
    assert "cannot be trained" in failure("state.pt", directory=tmp_path, mode=Mode.TRAIN).message


# --- plain modules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "shape"), [("net", (224, 224)), ("words", ())])
def test_a_module_alone_is_inferred_on_inputs_that_its_layers_take(name, shape):
    loop = own(name, batch_size=2)
    assert loop.mode is Mode.INFER
    assert tuple(loop.data.shape[2:]) == shape
    assert any("--input" in note for note in loop.notes)
    one_step(loop)


def test_each_input_that_a_model_needs_is_made_up():
    loop = own("pair", input_shape=(2, 3, 16, 16))
    assert [tuple(t.shape) for t in loop.data] == [(2, 3, 16, 16)] * 2
    one_step(loop)


class Needy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, tokens, lengths):
        return self.layer(tokens)[lengths.tolist()]


def test_inputs_that_cannot_be_made_up_are_named():
    with pytest.raises(TargetError) as error:
        normalise(Needy(), TargetSpec("mine:model", "/"))
    assert "tokens, lengths" in error.value.hint
    assert "tokens, lengths" in normalise(Needy(), TargetSpec("mine:model", "/", input_shape=(2, 9))).hint


# --- the batch's size -----------------------------------------------------------------------------------------


def test_heavier_models_get_smaller_batches_and_all_trials_the_same():
    layers = [nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)) for width in (16, 8192)]
    light, heavy = (normalise(model, TargetSpec("mine:model", "/", device="cpu")) for model in layers)
    again = normalise(layers[1], TargetSpec("mine:model", "/", device="cpu"))
    assert light.batch_size == 32
    assert heavy.batch_size < 32
    assert torch.equal(again.data, heavy.data)


def test_no_library_is_imported_for_a_target_that_does_not_need_it():
    code = (
        "import sys; from advisor.workloads.entrypoint import load_target; from advisor.records import TargetSpec\n"
        f"load_target(TargetSpec('objects.py:net', {str(OBJECTS)!r}, batch_size=1))\n"
        "libraries = ('timm', 'transformers', 'lightning', 'ultralytics', 'torch_geometric')\n"
        "print([name for name in libraries if name in sys.modules])"
    )
    ended = forked.run(code)
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr
