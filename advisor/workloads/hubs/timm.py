"""timm's models, with the input size of the model's own configuration. Nothing is downloaded."""

from typing import Any

from torch import nn

from advisor.records import TargetSpec
from advisor.workloads.guess import image_samples
from advisor.workloads.hubs.contract import Adapter, options_of, sample_shape, unknown_name
from advisor.workloads.loop import Loop


class Timm(Adapter):
    """``timm:NAME``, and models that timm built."""

    prefix = package = "timm"

    def load(self, name: str, spec: TargetSpec) -> Any:
        timm = self.imported()
        if not timm.is_model(name.partition(".")[0]):  # a tag after the dot names pretrained weights
            raise unknown_name(name, "timm", timm.list_models())
        return timm.create_model(name, pretrained=False, **options_of(spec))

    def samples(self, model: nn.Module, spec: TargetSpec, *, train: bool) -> Loop | None:
        config: Any = getattr(model, "pretrained_cfg", None)
        if not type(model).__module__.startswith("timm.") and not isinstance(config, dict):
            return None
        shape = sample_shape(spec, 4, "8x3x224x224") or _shape_of(model, config or {})
        return image_samples(model, shape, train=train and model.training)


def _shape_of(model: Any, config: Any) -> tuple[int, ...]:
    """The shape of an image: from the model's own layers, or else from its configuration."""
    channels, *size = config.get("input_size") or (3, 224, 224)
    first = config.get("first_conv")
    named = first if isinstance(first, str) else next(iter(first or ()), "")
    layer = model.get_submodule(named) if named in dict(model.named_modules()) else None
    size = list(getattr(getattr(model, "patch_embed", None), "img_size", None) or size)
    return (getattr(layer, "in_channels", channels), *size)
