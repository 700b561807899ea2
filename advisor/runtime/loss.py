"""Losses as the other rooms know them: the code is in ``portable/losses.py``, which exported files contain."""

from advisor.portable.losses import LossError, default_loss, describe_loss, main_output, takes_model

__all__ = ["LossError", "default_loss", "describe_loss", "main_output", "takes_model"]
