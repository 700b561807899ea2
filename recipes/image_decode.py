"""Image files decoded faster

What it does: Changes how a dataset such as torchvision's `ImageFolder` reads its files: one whose `loader` is
torchvision's and whose first transform is `Resize` or `RandomResizedCrop`. `torchvision` decodes to tensors, on which
the resize, the crops and the flips run by torchvision's v2 transforms; other transforms get images of Pillow as before.
`reduced` decodes JPEG files at a half, a quarter or an eighth of their size, if the resize makes them no larger.

Why it helps: Decoding and resizing take most of a worker's time. A resize of bytes in a tensor takes half of Pillow's
time. A JPEG file at a quarter of its size takes half the time to decode, and a fraction of it to resize.

When it does not: `reduced` needs files that are more than twice as large as the model's images: photos of cameras, not
ImageNet at 224. Files that torchvision does not decode, broken ones too, go to Pillow. Where torchvision has no
decoder, as in later releases, Pillow decodes for the tensors. With enough workers no step waits. Code of yours that
opens files is not changed. A GPU can decode too (`decode_jpeg(..., device="cuda")`), but resizes images one by one.

Numerics: close: by torchvision single pixels differ by a grey level. changed for `reduced`: its images differ by one or
two grey levels in the mean, about as with another interpolation.

References: torchvision documentation, Decoding images; Transforming images, Performance. Pillow, `Image.draft`.
"""

from collections.abc import Mapping
from typing import Any

from advisor.recipe import Expression, LoaderRecipe, gain_from
from advisor.records import Facts, LoaderFacts, Numerics, Phase, Proposal, Skip, Value


class ImageDecode(LoaderRecipe):
    key = "data.image_decode"
    values = ("pillow", "torchvision", "reduced")
    numerics_by = {"reduced": Numerics.CHANGED}
    usual = frozenset({"torchvision"})
    order = 1  # after gpu_transforms, which takes the last transforms as their owner wrote them
    imported = "from advisor.inlined.decoding import decoded"
    module = "decoding"

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        return Skip(loader.decoding_problem) if loader.decoding_problem else super().values_for(loader, facts)

    def gain_for(self, facts: Facts, value: Value) -> float:
        saved = 0.5 if value == "reduced" else 0.3  # of the time of reading a sample: tests/gpu/RESULTS.md
        return max(1.02, gain_from(saved * facts.profile.share(Phase.DATA_WAIT))) if facts.profile else 1.0 + saved / 2

    def options(self, value: Value) -> Mapping[str, Any]:
        return {} if value == self.default else {"dataset": Expression(f'decoded(loader.dataset, "{value}")')}
