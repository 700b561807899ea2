"""Models by the names that their libraries give them, and objects of those libraries. Nothing is downloaded."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import forked
import pytest
import torch
from torch import nn

from advisor.errors import TargetError
from advisor.portable.plan import StepPlan
from advisor.portable.tracing import CannotTraceError, trace
from advisor.recipe import Components
from advisor.records import Mode, TargetSpec
from advisor.runtime.step import make_step
from advisor.target.entrypoint import load_target
from advisor.target.hubs.contract import options_of
from advisor.target.hubs.huggingface import _config, _override, architecture_in
from advisor.target.normalise import normalise

# Frameworks take seconds to import, and some targets need a process of their own.
pytestmark = pytest.mark.process

OBJECTS = Path(__file__).parent / "models"
TINY = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=16", "vocab_size=50")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("the network was asked")

    def connect(own, address, usual=socket.socket.connect):
        return usual(own, address) if own.family == socket.AF_UNIX else refuse()

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", connect)


def load(target, *arguments, directory="/", **options):
    return load_target(TargetSpec(target, str(directory), device="cpu", arguments=arguments, **options))


def own(name, **options):
    return load(f"objects.py:{name}", directory=OBJECTS, **options)


def one_step(loop):
    batch = next(iter(loop.loader)) if loop.loader is not None else loop.data
    if loop.mode is Mode.INFER:
        loop.model.eval()
    plan = StepPlan(mode=loop.mode, device="cpu")
    return make_step(Components(loop.model, loop.optimizer, loop.data, plan), loop.loss)(batch)


def shapes(batch):
    return {name: tuple(value.shape) for name, value in batch.items()}


def failure(target, *arguments, **options):
    with pytest.raises(TargetError) as error:
        load(target, *arguments, **options)
    assert "\n" not in error.value.message
    assert error.value.hint
    return error.value


# --- timm -----------------------------------------------------------------------------------------------------


@pytest.fixture
def timm():
    return pytest.importorskip("timm")


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("target", ["timm:test_resnet", "timm:test_resnet.r160_in1k", "timm.models:test_resnet"])
def test_a_timm_model_trains_on_images_of_its_own_size(target):
    loop = load(target, batch_size=2)
    assert loop.mode is Mode.TRAIN
    assert [tuple(t.shape) for t in loop.data] == [(2, 3, 160, 160), (2,)]
    assert torch.isfinite(one_step(loop))


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("name", "option", "shape"),
    [("test_resnet", "in_chans=1", (2, 1, 160, 160)), ("test_vit", "img_size=96", (2, 3, 96, 96))],
)
def test_images_are_those_that_the_options_say(name, option, shape):
    loop = load(f"timm:{name}", option, batch_size=2)
    assert tuple(loop.data[0].shape) == shape
    assert torch.isfinite(one_step(loop))


@pytest.mark.usefixtures("timm")
def test_a_tag_says_the_size_and_the_classes_of_its_weights():
    plain, tagged = load("timm:convnext_atto", batch_size=1), load("timm:resnetv2_50x1_bit.goog_in21k", batch_size=1)
    assert plain.model.num_classes == 1000
    assert tagged.model.num_classes == 21843


@pytest.mark.usefixtures("timm")
def test_timm_obeys_mode_input_and_options():
    loop = load("timm:test_vit", "num_classes=7", mode=Mode.INFER, input_shape=(3, 3, 64, 64))
    assert one_step(loop).shape == (3, 7)


@pytest.mark.usefixtures("timm")
def test_images_that_do_not_fit_are_still_trained_on_and_explained():
    loop = load("timm:test_efficientnet", input_shape=(2, 1, 64, 64))
    assert loop.mode is Mode.TRAIN
    assert "float32[2, 1, 64, 64]" in loop.hint
    assert "--input" in loop.hint


@pytest.mark.usefixtures("timm")
def test_an_unknown_name_is_answered_with_the_nearest():
    assert "resnet50" in failure("timm:resnet5O").hint
    assert "resnet50" in failure("torchvision:resnet5O").hint
    assert "takes no option 'depht'" in failure("timm:test_resnet", "depht=3").message
    assert "num_classes" in failure("timm:test_resnet", "num_class=3").hint
    assert failure("torchvision:resnet18", "num_class=3").hint == "Did you mean num_classes?"
    assert "r160_in1k" in failure("timm:test_resnet.r16O_in1k").hint
    assert "it is timm:resnet50" in failure("timm:resnet50.nosuchtag").hint
    assert "key=value" in failure("timm:test_resnet", "--verbose").hint
    assert "timm:resnet50" in failure("timm:").hint
    assert failure(":").message == "':' is not a target."
    assert failure(":build").message == "':build' is not a target."


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("target", "option"),
    [("timm:test_resnet", "pretrained=true"), ("torchvision:resnet18", "weights=DEFAULT")],
)
def test_weights_are_not_asked_for_by_an_option(target, option):
    error = failure(target, option)
    assert "random weights" in error.message
    assert not error.details


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("HF:gpt2", "hf:gpt2"),
        ("huggingface:gpt2", "hf:gpt2"),
        ("tim:resnet18", "timm:resnet18"),
        ("tv:resnet18", "torchvision:resnet18"),
        ("yolo:yolo11n", "ultralytics:yolo11n"),
    ],
)
def test_a_word_near_a_librarys_prefix_is_answered_with_it(target, meant):
    assert f"Did you mean {meant}?" in failure(target).hint
    assert "Did you mean" not in failure("nobody_knows_this:build").hint


@pytest.mark.parametrize(
    ("target", "shape", "sizes"),
    [
        ("timm:test_resnet", (224, 224), 4),
        ("torchvision:resnet18", (8, 224, 224), 4),
        ("torchvision:r3d_18", (1, 3, 112, 112), 5),
        ("ultralytics:yolov8n", (64,), 4),
        ("hf:bert", (2, 3, 8, 8), 2),
    ],
)
def test_a_shape_of_other_sizes_than_a_batch_has_is_refused(target, shape, sizes, monkeypatch):
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    pytest.importorskip({"hf": "transformers"}.get(prefix := target.partition(":")[0], prefix))
    error = failure(target, *(TINY if prefix == "hf" else ()), input_shape=shape)
    assert error.message.endswith(f"has {len(shape)} sizes, and a batch of this model has {sizes}.")
    assert f"Write all {sizes}" in error.hint


@pytest.mark.parametrize(("target", "package"), [("timm:resnet18", "timm"), ("hf:bert", "transformers")])
def test_a_library_that_is_not_installed_is_named(monkeypatch, target, package):
    monkeypatch.setitem(sys.modules, package, None)
    error = failure(target)
    assert f"the package {package}, which is not installed" in error.message
    assert f"pip install {package}" in error.hint


# --- Hugging Face ---------------------------------------------------------------------------------------------


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


@pytest.mark.usefixtures("transformers")
def test_text_is_trained_on_tokens_and_says_what_stands_in():
    loop = load("hf:google-bert/bert-no-such-name", *TINY, "max_position_embeddings=24", batch_size=3)
    assert type(loop.model).__name__ == "BertForMaskedLM"
    assert loop.mode is Mode.TRAIN
    assert shapes(loop.data) == {"input_ids": (3, 24), "attention_mask": (3, 24), "labels": (3, 24)}
    assert any("the default configuration of bert stands in" in note for note in loop.notes)
    assert torch.isfinite(one_step(loop))
    inferred = load("hf:bert", *TINY, mode=Mode.INFER, input_shape=(2, 8))
    assert shapes(inferred.data) == {"input_ids": (2, 8), "attention_mask": (2, 8)}
    assert one_step(inferred).logits.shape == (2, 8, 50)


SMALL_T5 = ("d_model=16", "d_kv=8", "d_ff=16", "num_layers=1", "num_decoder_layers=1", "num_heads=2", "vocab_size=50")
SMALL_VIT = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=16", "image_size=32")
SMALL_WHISPER = (
    *("d_model=16", "encoder_layers=1", "decoder_layers=1", "encoder_attention_heads=2", "decoder_attention_heads=2"),
    *("encoder_ffn_dim=16", "decoder_ffn_dim=16", "max_source_positions=20", "max_target_positions=16"),
)
SMALL_SOUND = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=16")


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(
    ("name", "options", "main", "shape"),
    [
        ("gpt2", ("n_layer=1", "n_embd=16", "n_head=2", "n_positions=16", "vocab_size=50"), "input_ids", (2, 16)),
        ("t5", SMALL_T5, "input_ids", (2, 32)),
        ("vit", SMALL_VIT, "pixel_values", (2, 3, 32, 32)),
        ("whisper", SMALL_WHISPER, "input_features", (2, 80, 40)),
        ("wav2vec2", (*SMALL_SOUND, "num_conv_pos_embeddings=4", "num_conv_pos_embedding_groups=2",
                      "conv_dim=[8,8]", "conv_kernel=[10,3]", "conv_stride=[40,4]", "num_feat_extract_layers=2"),
         "input_values", (2, 16000)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", [None, Mode.INFER])
def test_each_kind_gets_inputs_of_its_own(name, options, main, shape, mode):
    loop = load(f"hf:{name}", *options, batch_size=2, mode=mode)
    assert loop.mode is (mode or Mode.TRAIN)
    assert ("labels" in loop.data) is (loop.mode is Mode.TRAIN)
    if main != "input_ids" or "positions" in str(options):
        assert shapes(loop.data)[main] == shape
    one_step(loop)


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SMALL_TEXT = {**SMALL, "vocab_size": 50, "max_position_embeddings": 34}
HTSAT = {"patch_embeds_hidden_size": 8, "hidden_size": 64, "depths": [1] * 4, "num_attention_heads": [1] * 4}


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("Clap", {"text_config": SMALL_TEXT, "audio_config": HTSAT, "projection_dim": 8},
         {"input_ids": (2, 32), "input_features": (2, 1, 1024, 64)}),
        ("Vilt", {**SMALL, "vocab_size": 50, "image_size": 64}, {"input_ids": (2, 40), "pixel_values": (2, 3, 64, 64)}),
        ("Git", {**SMALL_TEXT, "vision_config": {**SMALL, "image_size": 32}},
         {"input_ids": (2, 34), "pixel_values": (2, 3, 32, 32)}),
        ("Siglip2", {"text_config": SMALL_TEXT, "vision_config": {**SMALL, "patch_size": 32}},
         {"pixel_values": (2, 49, 3072), "spatial_shapes": (2, 2)}),
        ("Dac", {"encoder_hidden_size": 4, "decoder_hidden_size": 32}, {"input_values": (2, 1, 16000)}),
        ("Canine", {**SMALL, "max_position_embeddings": 34}, {"input_ids": (2, 34)}),
        ("EncoderDecoder", {"encoder": {"model_type": "bert", **SMALL_TEXT},
                            "decoder": {"model_type": "bert", **SMALL_TEXT, "is_decoder": True,
                                        "add_cross_attention": True}},
         {"input_ids": (2, 34)}),
        ("Wav2Vec2Bert", {**SMALL, "vocab_size": 32, "feature_projection_input_dim": 24},
         {"input_features": (2, 200, 24)}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", [None, Mode.INFER])
def test_inputs_of_all_that_a_model_takes_together(transformers, kind, options, expected, mode):
    config = getattr(transformers, f"{kind}Config")(**options)
    loop = normalise(config, TargetSpec(f"hf:{kind}", "/", device="cpu", batch_size=2, mode=mode))
    batch = loop.data
    assert {name: tuple(batch[name].shape) for name in expected} == expected
    loop.model.train(loop.mode is Mode.TRAIN)
    one_step(loop)


@pytest.mark.usefixtures("transformers")
def test_a_vocabulary_that_only_a_checkpoint_says_is_a_usual_one():
    options = [option for option in TINY if not option.startswith("vocab_size")]
    loop = load("hf:esm", *options, "max_position_embeddings=34", batch_size=2)
    assert loop.model.config.vocab_size == 32
    assert loop.mode is Mode.TRAIN
    assert torch.isfinite(one_step(loop))


@pytest.mark.usefixtures("transformers")
def test_a_folder_of_ones_own(transformers, tmp_path):
    options = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(**options, vocab_size=30, num_labels=3)
    transformers.BertForTokenClassification(config).save_pretrained(tmp_path / "mine")
    loop = load("hf:mine", directory=tmp_path, batch_size=2, input_shape=(2, 8))
    assert type(loop.model).__name__ == "BertForTokenClassification"
    assert loop.mode is Mode.TRAIN
    assert any("with its weights" in note for note in loop.notes)
    assert torch.isfinite(one_step(loop))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bert-base-uncased", "bert"),
        ("FacebookAI/roberta-base", "roberta"),
        ("distilbert-base-cased", "distilbert"),
        ("Qwen/Qwen2.5-0.5B", "qwen2"),
        ("meta-llama/Llama-3.2-1B", "llama"),
        ("distilgpt2", "gpt2"),
        ("openai/clip-vit-base-patch32", "clip"),
        ("google/gemma-2-2b", "gemma2"),
        ("google/gemma-2b", "gemma"),
        ("nobody/knows", None),
    ],
)
def test_an_architecture_is_found_in_a_name(name, kind):
    known = ("bert", "roberta", "distilbert", "qwen2", "llama", "gpt2", "clip", "vit", "gemma", "gemma2")
    assert architecture_in(name, known) == kind


@pytest.mark.usefixtures("transformers")
def test_what_is_not_on_disk_and_not_in_the_name_says_what_to_type():
    error = failure("hf:EleutherAI/pythia-70m")
    assert "not on this machine" in error.message
    assert "hf download EleutherAI/pythia-70m" in error.hint
    assert "gated" in error.hint
    assert "there is no folder ./nowhere" in failure("hf:./nowhere").message
    assert "num_hidden_layers" in failure("hf:bert", "hidden_layers=2").hint


@pytest.mark.usefixtures("transformers")
def test_a_text_longer_than_the_model_takes_is_refused():
    error = failure("hf:bert", *TINY, "max_position_embeddings=24", input_shape=(2, 25))
    assert "25 tokens" in error.message
    assert "--input 2x24" in error.hint


@pytest.mark.usefixtures("transformers")
def test_options_reach_the_part_of_a_configuration_that_is_about_text():
    text = ("hidden_size=16", "num_hidden_layers=1")
    config, _ = _config(sys.modules["transformers"], "gemma3", TargetSpec("hf:gemma3", "/"))
    _override(config, options_of(TargetSpec("hf:gemma3", "/", arguments=text)), "gemma3")
    assert config.text_config.hidden_size == 16
    assert config.text_config.num_hidden_layers == 1


@pytest.mark.usefixtures("transformers")
def test_a_model_that_has_no_room_is_refused_before_it_is_built():
    error = failure("hf:llama", "num_hidden_layers=4", "hidden_size=65536", "num_attention_heads=64")
    assert "GiB" in error.message
    assert "num_hidden_layers=2" in error.hint


# --- objects --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "batch"), [("lightning_pair", 4), ("lightning_alone", 8)])
def test_lightnings_own_step_and_optimizer(name, batch):
    pytest.importorskip("lightning")
    loop = own(name)
    assert loop.mode is Mode.TRAIN
    assert loop.batch_size == batch
    assert type(loop.optimizer).__name__ == {4: "AdamW", 8: "SGD"}[batch]
    assert torch.isfinite(one_step(loop))


@pytest.mark.usefixtures("transformers")
def test_a_trainers_loop(transformers):
    loop = own("trainer")
    assert type(loop.loader) is torch.utils.data.DataLoader
    assert loop.batch_size == 4
    assert loop.clip_norm == 1.0
    assert loop.current["precision.autocast"] == "bfloat16"
    assert torch.isfinite(one_step(loop))


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(("name", "labels"), [("tiny_bert", (2, 8)), ("bert_classifier", (2,)), ("lora", (2, 8))])
def test_configurations_and_models(name, labels):
    if name == "lora":
        pytest.importorskip("peft")
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


def test_a_detection_transformer_of_ultralytics(monkeypatch):
    monkeypatch.setenv("YOLO_OFFLINE", "true")
    pytest.importorskip("ultralytics")
    loop = load("ultralytics:rtdetr-resnet50", input_shape=(1, 3, 64, 64))
    assert type(loop.model).__name__ == "RTDETRDetectionModel"
    assert torch.isfinite(one_step(loop))


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
        assert one_step_as_it_is(loop).shape[1] == 3

    with pytest.raises(CannotTraceError, match=r"^is TorchScript"):  # which a recipe gives as its reason
        trace(loop.model)
    assert "--input" in failure("net.pt", directory=tmp_path).hint


class Scaled(nn.Module):
    def forward(self, values, shift, *, scale):
        return values * scale + shift


def test_an_exported_program_that_takes_inputs_by_position_and_by_keyword(tmp_path):
    examples = (torch.ones(2, 3), torch.full((2, 3), 5.0)), {"scale": torch.full((2, 3), 2.0)}
    torch.export.save(torch.export.export(Scaled(), *examples), tmp_path / "scaled.pt2")
    loop = load("scaled.pt2", directory=tmp_path)
    assert list(loop.data) == ["values", "shift", "scale"]
    assert "a dict of their names" in loop.notes[0]
    assert loop.model.train().training
    loop.model.eval()
    assert one_step_as_it_is(loop).tolist() == [[7.0] * 3] * 2


def one_step_as_it_is(loop):
    plan = StepPlan(mode=loop.mode, device="cpu")
    return make_step(Components(loop.model, None, loop.data, plan), None)(loop.data)


def test_exported_files_that_are_no_use(tmp_path):
    (tmp_path / "cut.pt2").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04 and no more")
    torch.save({"weight": torch.ones(2)}, tmp_path / "state.pt")
    assert "cannot be read" in failure("cut.pt2", directory=tmp_path).message
    assert "cannot be read" in failure("cut.pt", directory=tmp_path).message
    assert "state dict" in failure("state.pt", directory=tmp_path).message
    assert "there is no file" in failure("gone.pt2", directory=tmp_path).message
    refused = failure("state.pt", directory=tmp_path, mode=Mode.TRAIN)
    assert "cannot be trained" in refused.message


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
    loop = normalise(Needy(), TargetSpec("mine:model", "/", input_shape=(2, 9)))
    assert "tokens, lengths" in loop.hint


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
        "import sys; from advisor.target.entrypoint import load_target; from advisor.records import TargetSpec\n"
        f"load_target(TargetSpec('objects.py:net', {str(OBJECTS)!r}, batch_size=1))\n"
        "libraries = ('timm', 'transformers', 'lightning', 'ultralytics', 'torch_geometric')\n"
        "print([name for name in libraries if name in sys.modules])"
    )
    ended = forked.run(code)
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr
