"""Inputs of Hugging Face models beside text, images and sound: series, patches, boxes, masks, codebooks."""

from types import SimpleNamespace

import pytest
import torch
from named_models import failure, load, one_step, refuse_the_network, shapes

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.workloads.hubs import hf_batches, hf_classes, huggingface
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
SMALL_CODEC = {"model_type": "encodec", "codebook_size": 32, "num_filters": 2, "hidden_size": 8, "num_lstm_layers": 1}


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
        ("TimesFm", {**SMALL, "patch_length": 8, "context_length": 32, "horizon_length": 8, "head_dim": 8},
         {"past_values": (2, 32), "future_values": (2, 8)}),
        ("Informer", {"prediction_length": 8, "context_length": 24, "d_model": 16, "lags_sequence": [1, 5],
                      "num_time_features": 2, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16,
                      "decoder_ffn_dim": 16},
         {"past_values": (2, 29), "past_time_features": (2, 29, 2), "future_values": (2, 8),
          "future_time_features": (2, 8, 2)}),
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


def test_a_sound_is_decoded_from_the_tokens_of_each_codebook(transformers):
    text = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 2, "ffn_dim": 16, "hidden_size": 16, "num_hidden_layers": 1}
    decoder = {**heads, "vocab_size": 30, "num_codebooks": 4, "bos_token_id": 29, "pad_token_id": 29}
    parts = {"text_encoder": {"model_type": "t5", **text}, "audio_encoder": SMALL_CODEC}
    loop = loop_of(transformers, "Musicgen", {**parts, "decoder": decoder}, Mode.INFER)
    made = loop.data["decoder_input_ids"]
    assert made.shape == (2 * 4, loop.data["input_ids"].shape[1])
    assert made.max() < 30
    one_step(loop)


def test_a_class_that_is_in_no_table_of_transformers_is_found_beside_its_configuration():
    loop = load("hf:superpoint", batch_size=1, input_shape=(1, 3, 64, 64))
    assert type(loop.model).__name__ == "SuperPointForKeypointDetection"
    one_step(loop)


def test_an_architecture_that_is_made_of_others_has_no_default(transformers, monkeypatch):
    class MadeOfParts(transformers.PretrainedConfig):
        model_type = "made_of_parts"

        def __post_init__(self, **options):
            raise KeyError("Give both\nof its parts")

    monkeypatch.setitem(transformers.CONFIG_MAPPING._extra_content, "made_of_parts", MadeOfParts)
    error = failure("hf:made-of-parts")
    assert "made_of_parts has no default configuration" in error.message
    assert "config.json" in error.hint


def test_the_patches_of_a_grid_come_with_its_rows_and_columns(transformers):
    sizes = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 28}
    config = type(transformers.Qwen2VLConfig().vision_config)(**sizes, spatial_merge_size=2, temporal_patch_size=2)
    loop = normalise(config, TargetSpec("hf:qwen2_vl_vision", "/", device="cpu", batch_size=2))
    assert loop.data["grid_thw"].tolist() == [[1, 8, 8], [1, 8, 8]]
    assert loop.data["hidden_states"].shape == (2 * 8 * 8, 3 * 2 * 28 * 28)
    one_step(loop)


def test_a_model_whose_loss_takes_other_labels_infers_and_says_so(transformers):
    sizes = {"num_latents": 4, "d_latents": 16, "d_model": 16, "num_blocks": 1, "num_self_attends_per_block": 1}
    heads = {"num_self_attention_heads": 2, "num_cross_attention_heads": 2, "qk_channels": 16, "v_channels": 16}
    loop = loop_of(transformers, "Perceiver", {**sizes, **heads, "vocab_size": 50, "max_position_embeddings": 64})
    assert type(loop.model).__name__ == "PerceiverForMaskedLM"
    assert loop.mode is Mode.INFER
    assert any("labels that fit the loss of PerceiverForMaskedLM are not known" in note for note in loop.notes)
    one_step(loop)


SPEC = TargetSpec("hf:llava", "/", device="cpu")
OF_A_LLAMA = {"model_type": "llama", **SMALL_TEXT, "num_key_value_heads": 2}
OF_AN_IMAGE = {**SMALL, "image_size": 28, "patch_size": 14}
QWEN2_VL = {**SMALL_TEXT, "model_type": "qwen2_vl_text", "num_key_value_heads": 2}
TURNED = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
OF_PATCHES = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 28}
OF_SPEECH = {"input_dim": 24, "hidden_dim": 16, "num_layers": 1, "num_heads": 2, "dim_head": 8, "context_size": 8,
             "output_dim": 8, "max_pos_emb": 16}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options", "places", "beside"),
    [
        ("PaliGemma", {"text_config": {**OF_A_LLAMA, "model_type": "gemma", "head_dim": 8}, "projection_dim": 16,
                       "vision_config": {"model_type": "siglip_vision_model", **OF_AN_IMAGE}}, 4,
         {"pixel_values": (2, 3, 28, 28), "token_type_ids": (2, 38)}),
        ("Qwen2VL", {"text_config": {**QWEN2_VL, **TURNED}, "vision_config": OF_PATCHES}, 16,
         {"pixel_values": (2 * 64, 3 * 2 * 28 * 28), "image_grid_thw": (2, 3), "mm_token_type_ids": (2, 50)}),
        ("GraniteSpeech", {"text_config": OF_A_LLAMA, "encoder_config": OF_SPEECH,
                           "projector_config": {"model_type": "blip_2_qformer", **SMALL, "encoder_hidden_size": 16}},
         42, {"input_features": (2, 200, 24)}),
    ],
)  # fmt: skip
def test_an_image_or_a_sound_has_its_places_in_the_text_that_it_is_read_in(transformers, kind, options, places, beside):
    loop = loop_of(transformers, kind, options)
    made, labels = loop.data, loop.data["labels"]
    config = loop.model.config
    token = getattr(config, "image_token_id", None) or config.audio_token_id
    assert {name: shape for name, shape in shapes(made).items() if name in beside} == beside
    assert made["input_ids"].shape == (2, places + 34)
    assert (made["input_ids"] == token).sum(1).tolist() == [places, places]
    assert (labels == -100).equal(made["input_ids"] == token), "no loss of tokens that stand for something else"
    assert torch.isfinite(one_step(loop))


def test_an_image_that_has_one_size_only_stays_in_the_text_where_smaller_ones_are_sought(transformers):
    image = {"model_type": "clip_vision_model", **SMALL, "image_size": 252, "patch_size": 84}
    config = transformers.LlavaConfig(text_config=OF_A_LLAMA, vision_config=image)
    made = hf_batches.hf_samples(transformers.LlavaForConditionalGeneration(config), SPEC, train=True)
    assert {one.make(1)["pixel_values"].shape[-1] for one in (made, *made.shorter)} == {252}


def test_tokens_are_in_the_table_where_a_part_of_the_configuration_says_their_number(transformers):
    encoder = {"encoder_layers": 1, "encoder_num_attention_heads": 2, "encoder_linear_units": 16, "hidden_size": 16}
    decoder = {"decoder_layers": 1, "decoder_num_attention_heads": 2, "decoder_linear_units": 16, "num_mel_bins": 8}
    rest = {"speech_decoder_postnet_units": 16, "duration_predictor_channels": 8, "vocab_size": 20}
    vocoder = {"model_in_dim": 8, "upsample_initial_channel": 32}
    parts = {"model_config": {**encoder, **decoder, **rest}, "vocoder_config": vocoder}
    loop = loop_of(transformers, "FastSpeech2ConformerWithHifiGan", parts)
    assert loop.data["input_ids"].max() < 20
    one_step(loop)


def test_classes_of_a_decoder_are_read_at_the_end_of_each_text(transformers):
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, n_positions=16, vocab_size=50)
    model = transformers.GPT2ForSequenceClassification(config)
    loop = normalise(model, TargetSpec("model.py:model", "/", device="cpu", batch_size=2, mode=Mode.INFER))
    assert one_step(loop).logits.shape == (2, 2)


def test_a_configuration_that_is_a_part_of_itself():
    config = SimpleNamespace(hidden_size=16)
    config.encoder = config
    assert hf_classes.said_by(config, "hidden_size") == 16
    assert hf_classes.said_by(config, "image_size") is None


def test_a_default_configuration_that_lacks_something_says_so():
    error = failure("hf:lfm2_moe")
    assert "cannot be made of this configuration" in error.message
    assert "behind --" in error.hint


def test_a_class_that_needs_a_package_says_which():
    def needy(config):
        raise ImportError("NeedyModel requires the scipy library but it was not found in your environment.")

    with pytest.raises(TargetError) as error:
        huggingface._of_config(needy, None)
    assert "needy needs the package scipy" in error.value.message
    assert "pip install scipy" in error.value.hint
