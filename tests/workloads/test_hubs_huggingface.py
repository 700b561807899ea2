"""Hugging Face models by name, from a folder or a configuration. Nothing is downloaded."""

import pytest
import torch
from named_models import TINY, failure, load, one_step, refuse_the_network, shapes

from advisor.records import Mode, TargetSpec
from advisor.workloads.hubs.contract import options_of
from advisor.workloads.hubs.hf_classes import architecture_in
from advisor.workloads.hubs.huggingface import _config, _with_options
from advisor.workloads.normalise import normalise

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def transformers(monkeypatch):
    refuse_the_network(monkeypatch)
    return pytest.importorskip("transformers")


def test_text_is_trained_on_tokens_and_says_what_stands_in():
    loop = load("hf:google-bert/bert-no-such-name", *TINY, "max_position_embeddings=24", batch_size=3)
    assert type(loop.model).__name__ == "BertForMaskedLM"
    assert loop.mode is Mode.TRAIN
    assert shapes(loop.data) == {"input_ids": (3, 24), "attention_mask": (3, 24), "labels": (3, 24)}
    assert any("the default configuration of bert is measured" in note for note in loop.notes)
    assert torch.isfinite(one_step(loop))
    inferred = load("hf:bert", *TINY, mode=Mode.INFER, input_shape=(2, 8))
    assert shapes(inferred.data) == {"input_ids": (2, 8), "attention_mask": (2, 8)}
    assert one_step(inferred).logits.shape == (2, 8, 50)


def test_a_text_may_end_in_one_of_several_tokens(transformers):
    config = transformers.LlamaConfig(**SMALL_TEXT, num_key_value_heads=2, eos_token_id=[7, 48])
    tokens = normalise(config, TargetSpec("hf:llama", "/", device="cpu", batch_size=2)).data["input_ids"]
    assert not torch.isin(tokens, torch.tensor([7, 48])).any()


SMALL_T5 = ("d_model=16", "d_kv=8", "d_ff=16", "num_layers=1", "num_decoder_layers=1", "num_heads=2", "vocab_size=50")
SMALL_VIT = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=16", "image_size=32")
SMALL_SOUND = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=16")


@pytest.mark.parametrize(
    ("name", "options", "main", "shape"),
    [
        ("gpt2", ("n_layer=1", "n_embd=16", "n_head=2", "n_positions=16", "vocab_size=50"), "input_ids", (2, 16)),
        ("t5", SMALL_T5, "input_ids", (2, 32)),
        ("vit", SMALL_VIT, "pixel_values", (2, 3, 32, 32)),
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
SERIES = {"d_model": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, "context_length": 32}
TOGETHER = [
    ("EncoderDecoder", {"encoder": {"model_type": "bert", **SMALL_TEXT},
                        "decoder": {"model_type": "bert", **SMALL_TEXT, "is_decoder": True,
                                    "add_cross_attention": True}},
     {"input_ids": (2, 34)}),
    ("Wav2Vec2Bert", {**SMALL, "vocab_size": 32, "feature_projection_input_dim": 24},
     {"input_features": (2, 200, 24)}),
    ("PatchTST", {**SERIES, "num_input_channels": 3, "prediction_length": 8, "patch_length": 8},
     {"past_values": (2, 32, 3), "future_values": (2, 8, 3)}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "expected"), TOGETHER)
def test_inputs_of_all_that_a_model_takes_together(transformers, kind, options, expected):
    config = getattr(transformers, f"{kind}Config")(**options)
    loop = normalise(config, TargetSpec(f"hf:{kind}", "/", device="cpu", batch_size=2))
    assert {name: tuple(loop.data[name].shape) for name in expected} == expected
    loop.model.train(loop.mode is Mode.TRAIN)
    one_step(loop)


def test_a_model_with_a_loss_of_its_own_is_trained_without_labels():
    loop = load("hf:vit_mae", *SMALL_VIT, *(f"decoder_{option}" for option in SMALL_VIT[:4]), batch_size=2)
    assert loop.mode is Mode.TRAIN
    assert loop.data.keys() == {"pixel_values"}
    assert torch.isfinite(one_step(loop))
    assert load("hf:clip_vision_model", *SMALL_VIT, batch_size=2).mode is Mode.INFER


def test_a_folder_of_ones_own(transformers, tmp_path):
    config = transformers.BertConfig(**SMALL, vocab_size=30, num_labels=3)
    transformers.BertForTokenClassification(config).save_pretrained(tmp_path / "mine")
    loop = load("hf:mine", directory=tmp_path, batch_size=2, input_shape=(2, 8))
    assert type(loop.model).__name__ == "BertForTokenClassification"
    assert loop.mode is Mode.TRAIN
    assert any("with its weights" in note for note in loop.notes)
    assert torch.isfinite(one_step(loop))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Qwen/Qwen2.5-0.5B", "qwen2"),
        ("distilgpt2", "gpt2"),
        ("openai/clip-vit-base-patch32", "clip"),
        ("google/gemma-2-2b", "gemma2"),
        ("Helsinki-NLP/opus-mt-en-de", "marian"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "qwen2"),
        ("microsoft/deberta-v3-base", "deberta-v2"),
        ("nobody/nothing-like-it", None),
    ],
)
def test_an_architecture_is_found_in_a_name(transformers, name, kind):
    assert architecture_in(name, transformers.CONFIG_MAPPING) == kind


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("EleutherAI/pythia-70m", (), ("not on this machine", "hf download EleutherAI/pythia-70m", "gated")),
        ("./nowhere", (), ("there is no folder ./nowhere",)),
        ("bert", ("hidden_layers=2",), ("num_hidden_layers",)),
        ("bert", ("num_hidden_layers=two",), ("Validation error for field 'num_hidden_layers'",)),
        ("time_series_transformer", (), ("prediction_length", "after --")),
        (
            "meta/llama-tiny",
            ("num_hidden_layers=4", "hidden_size=65536", "num_attention_heads=64"),
            ("GiB", "llama-tiny is not on this machine: the default configuration of llama", "num_hidden_layers=2"),
        ),
    ],
)
def test_what_cannot_be_built_says_what_to_type(name, options, said):
    error = failure(f"hf:{name}", *options)
    assert [part for part in said if part not in f"{error.message} {error.hint}"] == []


def test_a_text_longer_than_the_model_takes_is_refused():
    error = failure("hf:bert", *TINY, "max_position_embeddings=24", input_shape=(2, 25))
    assert "25 tokens" in error.message
    assert "--input 2x24" in error.hint


def test_a_folder_without_a_configuration_hides_no_architecture_of_its_name(tmp_path):
    (tmp_path / "bert").mkdir()
    (tmp_path / "data").mkdir()
    loop = load("hf:bert", *TINY, "max_position_embeddings=24", directory=tmp_path, batch_size=2)
    assert type(loop.model).__name__ == "BertForMaskedLM"
    assert "`model_type`" in failure("hf:./bert", directory=tmp_path).message
    assert "data is not on this machine" in failure("hf:data", directory=tmp_path).message


def test_options_reach_the_part_of_a_configuration_that_is_about_text(transformers):
    text = ("hidden_size=16", "num_hidden_layers=1")
    config, _ = _config(transformers, "gemma3", TargetSpec("hf:gemma3", "/"))
    config = _with_options(config, options_of(TargetSpec("hf:gemma3", "/", arguments=text)), "gemma3")
    assert config.text_config.hidden_size == 16
    assert config.text_config.num_hidden_layers == 1


def test_what_follows_from_an_option_is_made_anew(transformers, tmp_path):
    options = {"num_layers": 2}
    default = _config(transformers, "t5", TargetSpec("hf:t5", "/"))[0]
    assert _with_options(default, options, "t5").num_decoder_layers == 2
    transformers.T5Config(num_layers=3).save_pretrained(tmp_path)
    changed = _with_options(_config(transformers, str(tmp_path), TargetSpec("hf:t5", "/"))[0], options, "t5")
    assert (changed.num_layers, changed.num_decoder_layers) == (2, 3), "as the file says"


def test_weights_of_other_shapes_are_left_out(transformers, tmp_path):
    transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, vocab_size=30)).save_pretrained(tmp_path / "mine")
    assert any("with its weights" in note for note in load("hf:./mine", directory=tmp_path).notes)
    larger = load("hf:./mine", "vocab_size=40", directory=tmp_path)
    assert larger.model.config.vocab_size == 40
    assert any("random if a shape differs" in note for note in larger.notes)


def test_generation_says_how_many_tokens_a_step_makes():
    loop = load("hf:gpt2", "n_layer=1", "n_embd=16", "n_head=2", "vocab_size=50", "generate=3", batch_size=2)
    assert (loop.mode, loop.step.new_tokens, loop.step(loop.data).shape) == (Mode.INFER, 3, (2, 35))
