"""Inputs of Hugging Face models beside text, images and sound: series, patches, boxes, masks, codebooks."""

import pytest
import torch
from named_models import failure, load, one_step, refuse_the_network, shapes

from advisor.records import Mode, TargetSpec
from advisor.workloads.normalise import normalise


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    refuse_the_network(monkeypatch)


@pytest.fixture(autouse=True)
def transformers():
    return pytest.importorskip("transformers")


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SMALL_TEXT = {**SMALL, "vocab_size": 50, "max_position_embeddings": 34}
SERIES = {"d_model": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, "context_length": 32}


def loop_of(transformers, kind, options, mode=None):
    config = getattr(transformers, f"{kind}Config")(**options)
    loop = normalise(config, TargetSpec(f"hf:{kind}", "/", device="cpu", batch_size=2, mode=mode))
    loop.model.train(loop.mode is Mode.TRAIN)
    return loop


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("PatchTST", {**SERIES, "num_input_channels": 3, "prediction_length": 8, "patch_length": 8},
         {"past_values": (2, 32, 3), "future_values": (2, 8, 3)}),
        ("Bros", {**SMALL_TEXT, "hidden_size": 64, "num_labels": 3}, {"input_ids": (2, 34), "bbox": (2, 34, 4)}),
        ("Reformer", {"attn_layers": ["local"], "axial_pos_shape": [4, 16], "axial_pos_embds_dim": [8, 8],
                      "hidden_size": 16, "feed_forward_size": 16, "num_attention_heads": 2, "vocab_size": 50,
                      "attention_head_size": 8, "local_attn_chunk_length": 16, "max_position_embeddings": 64},
         {"input_ids": (2, 64)}),
    ],
)  # fmt: skip
def test_a_model_is_trained_on_the_kind_of_inputs_that_it_takes(transformers, kind, options, expected):
    loop = loop_of(transformers, kind, options)
    made = shapes(loop.data)
    assert {name: made.get(name) for name in expected} == expected
    assert loop.mode is Mode.TRAIN
    assert torch.isfinite(one_step(loop))


def test_a_class_that_is_in_no_table_of_transformers_is_found_beside_its_configuration():
    loop = load("hf:superpoint", batch_size=1, input_shape=(1, 3, 64, 64))
    assert type(loop.model).__name__ == "SuperPointForKeypointDetection"
    one_step(loop)


def test_the_patches_of_a_grid_come_with_its_rows_and_columns(transformers):
    sizes = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 28}
    config = type(transformers.Qwen2VLConfig().vision_config)(**sizes, spatial_merge_size=2, temporal_patch_size=2)
    loop = normalise(config, TargetSpec("hf:qwen2_vl_vision", "/", device="cpu", batch_size=2))
    assert loop.data["grid_thw"].tolist() == [[1, 8, 8], [1, 8, 8]]
    assert loop.data["hidden_states"].shape == (2 * 8 * 8, 3 * 2 * 28 * 28)
    one_step(loop)


def test_classes_of_a_decoder_are_read_at_the_end_of_each_text(transformers):
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, n_positions=16, vocab_size=50)
    model = transformers.GPT2ForSequenceClassification(config)
    loop = normalise(model, TargetSpec("model.py:model", "/", device="cpu", batch_size=2, mode=Mode.INFER))
    assert one_step(loop).logits.shape == (2, 2)


def test_a_default_configuration_that_lacks_something_says_so():
    error = failure("hf:lfm2_moe")
    assert "cannot be made of this configuration" in error.message
    assert "after --" in error.hint
