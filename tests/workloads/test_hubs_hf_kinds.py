"""Inputs of Hugging Face models beside text, images and sound: series, patches, boxes, masks, codebooks."""

from types import SimpleNamespace

import pytest
import torch
from named_models import failure, load, one_step, refuse_the_network, shapes

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.target.hubs import hf_batches, hf_classes, huggingface
from advisor.target.normalise import normalise


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
PIX2STRUCT = {"hidden_size": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2}


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
        ("Pix2Struct", {"text_config": {**PIX2STRUCT, "num_layers": 1, "vocab_size": 50},
                        "vision_config": {**PIX2STRUCT, "num_hidden_layers": 1, "num_attention_heads": 2,
                                          "patch_size": 4, "patch_embed_hidden_size": 48}},
         {"flattened_patches": (2, 512, 50)}),
        ("Idefics", {**SMALL_TEXT, "vision_config": {"embed_dim": 16, "image_size": 28, **SMALL}},
         {"pixel_values": (2, 1, 3, 28, 28), "image_attention_mask": (2, 34, 1)}),
        ("InstructBlip", {"text_config": {"model_type": "opt", **SMALL_TEXT, "ffn_dim": 16, "word_embed_proj_dim": 16},
                          "vision_config": {**SMALL, "image_size": 28}, "num_query_tokens": 2,
                          "qformer_config": {**SMALL, "vocab_size": 1000, "encoder_hidden_size": 16}},
         {"qformer_input_ids": (2, 34)}),
        ("Bros", {**SMALL_TEXT, "hidden_size": 64, "num_labels": 3}, {"input_ids": (2, 34), "bbox": (2, 34, 4)}),
        ("Xmod", {**SMALL_TEXT, "languages": ["en", "de"]}, {"input_ids": (2, 32), "lang_ids": (2,)}),
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


def test_patches_are_numbered_by_row_and_column(transformers):
    sizes = {**PIX2STRUCT, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_embed_hidden_size": 12}
    loop = loop_of(transformers, "Pix2StructVision", sizes, Mode.INFER)
    places = loop.data["flattened_patches"][0, :, :2]
    assert places[0].tolist() == [1, 1]
    assert len({tuple(place) for place in places.tolist()}) == len(places), "each patch has a place of its own"


CONFORMER = {
    **SMALL,
    "num_mel_bins": 16,
    "subsampling_conv_channels": 8,
    "conv_kernel_size": 3,
    "num_key_value_heads": 2,
}


def test_a_mask_that_a_model_looks_at_is_made_though_its_signature_does_not_require_it(transformers):
    loop = loop_of(transformers, "LasrCTC", {"encoder_config": CONFORMER, "vocab_size": 32})
    features, mask = loop.data["input_features"], loop.data["attention_mask"]
    assert mask.shape == features.shape[:2]
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


def test_a_decoder_takes_the_tokens_of_each_codebook_in_a_row(transformers):
    options = {**SMALL_TEXT, "num_codebooks": 3, "ffn_dim": 16}
    config = transformers.CONFIG_MAPPING["musicgen_decoder"](**options)
    loop = normalise(config, TargetSpec("hf:musicgen_decoder", "/", device="cpu", batch_size=2))
    assert loop.data["input_ids"].shape == (2 * 3, 34)
    one_step(loop)


def test_the_vectors_of_a_sound_may_have_their_channels_first(transformers):
    heads = {"head_dim": 8, "num_key_value_heads": 2}
    config = transformers.CONFIG_MAPPING["mimi_decoder"](**SMALL, **heads, num_filters=2, upsample_groups=16)
    loop = normalise(config, TargetSpec("hf:mimi_decoder", "/", device="cpu", batch_size=2))
    assert loop.data["latents"].shape == (2, 16, 16)
    one_step(loop)


def test_a_class_that_is_in_no_table_of_transformers_is_found_beside_its_configuration():
    loop = load("hf:superpoint", batch_size=1, input_shape=(1, 3, 64, 64))
    assert type(loop.model).__name__ == "SuperPointForKeypointDetection"
    one_step(loop)


def test_of_a_model_that_only_generates_the_largest_part_is_measured(transformers):
    small = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "block_size": 32}
    texts = {"semantic_config": {**small, "hidden_size": 32}, "coarse_acoustics_config": small}
    config = transformers.BarkConfig(**texts, fine_acoustics_config=small, codec_config=SMALL_CODEC)
    loop = normalise(config, TargetSpec("hf:bark", "/", device="cpu", batch_size=2))
    assert type(loop.model).__name__ == "BarkSemanticModel"
    assert any("BarkModel has no forward pass of its own" in note for note in loop.notes)
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


@pytest.mark.parametrize(
    ("part", "options", "name", "shape"),
    [
        ("granite_speech_encoder", {"input_dim": 24, "hidden_dim": 16, "num_layers": 1, "num_heads": 2, "dim_head": 8,
                                    "context_size": 8, "output_dim": 8, "max_pos_emb": 16}, "hidden_states", (16, 24)),
        ("speecht5_hifigan", {"upsample_initial_channel": 32}, "spectrogram", (16, 80)),
        ("florence_vision", {"embed_dim": [8] * 4, "num_heads": [2] * 4, "num_groups": [2] * 4, "depths": [1] * 4},
         "hidden_states", (3, 224, 224)),
    ],
)  # fmt: skip
def test_a_part_takes_vectors_or_what_the_whole_takes(transformers, part, options, name, shape):
    config = transformers.CONFIG_MAPPING[part](**options)
    loop = normalise(config, TargetSpec(f"hf:{part}", "/", device="cpu", batch_size=2))
    assert loop.data[name].shape == (2, *shape)
    one_step(loop)


def test_frames_are_images_of_their_own_where_a_part_takes_them_so(transformers):
    sizes = {**SMALL, "num_frames": 4, "image_size": 32, "mit_hidden_size": 16, "mit_intermediate_size": 16}
    loop = loop_of(transformers, "XCLIPVision", {**sizes, "mit_num_attention_heads": 2})
    assert loop.data["pixel_values"].shape == (2 * 4, 3, 32, 32)
    one_step(loop)


def test_images_come_in_pairs_where_a_model_compares_them(transformers):
    detector = {"encoder_hidden_sizes": [8, 8, 8, 8], "decoder_hidden_size": 8, "keypoint_decoder_dim": 65,
                "descriptor_decoder_dim": 16, "max_keypoints": 10}  # fmt: skip
    sizes = {"hidden_size": 16, "keypoint_encoder_sizes": [8, 16], "gnn_layers_types": ["self"]}
    options = {"keypoint_detector_config": {"model_type": "superpoint", **detector}, **sizes}
    loop = loop_of(transformers, "SuperGlue", {**options, "num_attention_heads": 2})
    assert loop.data["pixel_values"].shape == (2, 2, 3, 224, 224)
    one_step(loop)


def test_a_model_whose_loss_takes_other_labels_infers_and_says_so(transformers):
    sizes = {"num_latents": 4, "d_latents": 16, "d_model": 16, "num_blocks": 1, "num_self_attends_per_block": 1}
    heads = {"num_self_attention_heads": 2, "num_cross_attention_heads": 2, "qk_channels": 16, "v_channels": 16}
    loop = loop_of(transformers, "Perceiver", {**sizes, **heads, "vocab_size": 50, "max_position_embeddings": 64})
    assert type(loop.model).__name__ == "PerceiverForMaskedLM"
    assert loop.mode is Mode.INFER
    assert any("labels that fit the loss of PerceiverForMaskedLM are not known" in note for note in loop.notes)
    one_step(loop)


def test_texts_of_an_encoder_with_fewer_tokens_than_its_decoder(transformers):
    heads = {"num_key_value_heads": 2, "head_dim": 8}
    cross = {"cross_head_dim": 8, "cross_hidden_size": 16, "cross_num_attention_heads": 2}
    special = {"bos_token_id": 88, "eos_token_id": 87, "pad_token_id": 86}
    decoder = {**SMALL_TEXT, **heads, **cross, "cross_num_key_value_heads": 2, "num_channels": 3, "vocab_size": 90}
    parts = {"encoder_config": {**SMALL_TEXT, **heads}, "decoder_config": {**decoder, **special}}
    loop = loop_of(transformers, "Dia", {**parts, "delay_pattern": [0, 1, 2]}, Mode.INFER)
    assert loop.data["input_ids"].max() < 50
    assert loop.data["decoder_input_ids"].shape == (2, 34, 3)
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
        ("SmolVLM", {"text_config": OF_A_LLAMA, "vision_config": {"model_type": "smolvlm_vision", **OF_AN_IMAGE}}, 1,
         {"pixel_values": (2, 1, 3, 28, 28)}),
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
    loop = loop_of(transformers, kind, {**options, **({"scale_factor": 2} if kind == "SmolVLM" else {})})
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


def test_spectrograms_of_another_usual_number_of_bins(transformers):
    sizes = {**SMALL, "conv_kernel_size": 3, "subsampling_conv_channels": [128, 8], "output_proj_dims": 16}
    loop = loop_of(transformers, "Gemma4Audio", sizes)
    assert loop.data["input_features"].shape == (2, 200, 128)
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


def test_what_a_default_configuration_leaves_open_has_the_usual_sizes_or_is_named(transformers):
    config = huggingface._completed(transformers.NemotronConfig())
    assert config.num_key_value_heads == config.num_attention_heads
    assert config.head_dim == config.hidden_size // config.num_attention_heads
    error = failure("hf:lfm2_moe")
    assert "cannot be made of this configuration" in error.message
    assert "(layer_types)" in error.hint


def test_a_class_that_needs_a_package_says_which():
    def needy(config):
        raise ImportError("NeedyModel requires the scipy library but it was not found in your environment.")

    with pytest.raises(TargetError) as error:
        huggingface._of_config(needy, None)
    assert "needy needs the package scipy" in error.value.message
    assert "pip install scipy" in error.value.hint


OF_WINDOWS = {
    **SMALL,
    "model_type": "rf_detr_dinov2",
    "image_size": 70,
    "patch_size": 14,
    "num_windows": 2,
    "out_indices": [0, 1],
    "window_block_indexes": [0],
}
OF_BOXES = {
    "d_model": 16,
    "decoder_layers": 1,
    "decoder_self_attention_heads": 2,
    "decoder_cross_attention_heads": 2,
    "decoder_ffn_dim": 16,
    "num_queries": 5,
    "group_detr": 1,
    "projector_out_channels": 16,
}
OF_FEATURES = {**SMALL, "hidden_size": 32, "feature_projection_input_dim": 24, "output_hidden_size": 32}


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        # As many windows of whole patches as the usual side has room for.
        ("RfDetr", {"backbone_config": OF_WINDOWS, **OF_BOXES}, {"pixel_values": (2, 3, 56, 56)}),
        # A sound with its only channel, beside its spectrogram.
        ("NeuCodec", {**SMALL, "hidden_size": 32, "head_dim": 16, "num_key_value_heads": 2, "encoder_hidden_size": 2,
                      "semantic_model_config": OF_FEATURES, "quantization_dim": 64},
         {"input_values": (2, 1, 16000), "input_features": (2, 200, 24)}),
    ],
)  # fmt: skip
def test_a_model_infers_from_inputs_of_the_form_that_it_takes(transformers, kind, options, expected):
    loop = loop_of(transformers, kind, options, Mode.INFER)
    made = shapes(loop.data)
    assert {name: made.get(name) for name in expected} == expected
    one_step(loop)
