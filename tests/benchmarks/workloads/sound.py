"""Models of sound of torchaudio's: a Conformer that labels frames of speech, a wav2vec 2.0 encoder."""

import torch
import torchaudio
from torch import nn
from torch.nn import functional


def adamw(lr):
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr)


def frame_loss(output, target):
    return functional.cross_entropy(output.transpose(1, 2), target)


class Labeller(nn.Module):
    def __init__(self, features, width, labels):
        super().__init__()
        self.project = nn.Linear(features, width)
        self.encoder = torchaudio.models.Conformer(width, 4, 4 * width, 8, 31, dropout=0.1)
        self.head = nn.Linear(width, labels)

    def forward(self, features, lengths):
        encoded, _ = self.encoder(self.project(features), lengths)
        return self.head(encoded)


def conformer():
    """It reads the longest length on the host in each step."""
    features, frames, batch, labels = 80, 400, 16, 500
    data = (torch.randn(batch, frames, features), torch.full((batch,), frames), torch.randint(labels, (batch, frames)))
    return Labeller(features, 256, labels), data, frame_loss, adamw(1e-3)


class Recogniser(nn.Module):
    def __init__(self, labels):
        super().__init__()
        self.encoder = torchaudio.models.wav2vec2_model(
            extractor_mode="group_norm",
            extractor_conv_layer_config=None,
            extractor_conv_bias=False,
            encoder_embed_dim=512,
            encoder_projection_dropout=0.1,
            encoder_pos_conv_kernel=128,
            encoder_pos_conv_groups=16,
            encoder_num_layers=6,
            encoder_num_heads=8,
            encoder_attention_dropout=0.1,
            encoder_ff_interm_features=2048,
            encoder_ff_interm_dropout=0.0,
            encoder_dropout=0.1,
            encoder_layer_norm_first=False,
            encoder_layer_drop=0.0,
            aux_num_out=labels,
        )

    def forward(self, waveforms):
        return self.encoder(waveforms)[0]


def wav2vec2():
    """Two seconds of sound: long 1-D convolutions before a transformer."""
    samples, frames, batch, labels = 32000, 99, 8, 32
    data = (torch.randn(batch, samples), torch.randint(labels, (batch, frames)))
    return Recogniser(labels), data, frame_loss, adamw(1e-4)
