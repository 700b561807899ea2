"""Image files decoded faster

What it does: Reads the image files of a dataset (torchvision's `ImageFolder`, for example) in another way. The dataset
needs torchvision's `loader` and `Resize` or `RandomResizedCrop` as its first transform. `torchvision` decodes to
tensors; resize, crops and flips run on them as v2 transforms, other transforms get images of Pillow as before.
`reduced` decodes JPEG files at a half, a quarter or an eighth of their size, if the resize then enlarges none.

Why it helps: Decoding and resizing take most of a worker's time. Resizing bytes in a tensor takes half of Pillow's
time. A JPEG file at a quarter of its size takes half the time to decode, and a fraction of it to resize.

When it does not: `reduced` needs files that are more than twice as large as the model's images (camera photos, not
ImageNet at 224). Pillow reads files that torchvision cannot decode, and broken ones. If torchvision has no decoder (in
later releases), Pillow decodes for the tensors. With enough workers no step waits. Your own code that opens files does
not change. A GPU can decode too (`decode_jpeg(..., device="cuda")`), but resizes images one by one.

Numerics: close: with torchvision, single pixels differ by one grey level. changed for `reduced`: its images differ by
one or two grey levels on average, about as much as with another interpolation.

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
    order = 1  # after gpu_transforms, which needs the last transforms as the user wrote them
    imported = "from advisor.inlined.decoding import decoded"
    module = "decoding"

    def values_for(self, loader: LoaderFacts, facts: Facts) -> Proposal:
        return Skip(loader.decoding_problem) if loader.decoding_problem else super().values_for(loader, facts)

    def gain_for(self, facts: Facts, value: Value) -> float:
        saved = 0.5 if value == "reduced" else 0.3  # shares of the time to read a sample: tests/gpu/RESULTS.md
        return max(1.02, gain_from(saved * facts.profile.share(Phase.DATA_WAIT))) if facts.profile else 1.0 + saved / 2

    def options(self, value: Value) -> Mapping[str, Any]:
        return {} if value == self.default else {"dataset": Expression(f'decoded(loader.dataset, "{value}")')}
