"""A wav2vec 2.0 encoder of torchaudio's on two seconds of sound: long 1-D convolutions before a transformer."""

import torch
import torchaudio
from torch import nn
from torch.nn import functional

SAMPLES, FRAMES, BATCH, LABELS = 32000, 99, 8, 32
SIZES = {"encoder_embed_dim": 512, "encoder_num_layers": 6, "encoder_num_heads": 8, "encoder_ff_interm_features": 2048}


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torchaudio.models.wav2vec2_model(
            extractor_mode="group_norm",
            extractor_conv_layer_config=None,
            extractor_conv_bias=False,
            encoder_projection_dropout=0.1,
            encoder_pos_conv_kernel=128,
            encoder_pos_conv_groups=16,
            encoder_attention_dropout=0.1,
            encoder_ff_interm_dropout=0.0,
            encoder_dropout=0.1,
            encoder_layer_norm_first=False,
            encoder_layer_drop=0.0,
            aux_num_out=LABELS,
            **SIZES,
        )

    def forward(self, waveforms):
        return self.encoder(waveforms)[0]


def frame_loss(output, target):
    return functional.cross_entropy(output.transpose(1, 2), target)


def build():
    batch = (torch.randn(BATCH, SAMPLES), torch.randint(LABELS, (BATCH, FRAMES)))
    return Recogniser(), batch, frame_loss, lambda parameters: torch.optim.AdamW(parameters, lr=1e-4)
