"""The catalogue of workloads: the name, the family and the target of each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Usual seconds that timing all variants of a workload takes on a GPU, compilation included. Estimated.
TIMING_S, LONG_TIMING_S = 60, 110


@dataclass(frozen=True, slots=True)
class Workload:
    """A row of the tables. ``batch_size`` is set for inference.

    ``timing_s`` is the expected duration of timing all variants, in seconds.
    """

    name: str
    title: str
    family: str
    target: str
    batch_size: int | None = None
    timing_s: int = TIMING_S

    @property
    def trains(self) -> bool:
        """Whether the loop is a training loop."""
        return self.batch_size is None

    @property
    def file(self) -> Path:
        """The file that holds the target."""
        return Path(self.target.rpartition(":")[0])


def _gpu(name: str, title: str, family: str, **options: Any) -> Workload:
    """A workload from the files that the GPU tests use too."""
    return _workload(name, title, family, ROOT / "tests" / "gpu" / "workloads", **options)


def _own(name: str, title: str, family: str, **options: Any) -> Workload:
    """A workload from the files beside this one."""
    return _workload(name, title, family, HERE / "workloads", **options)


def _inference(name: str, model: str, of: Callable[..., Workload] = _own, **options: Any) -> Workload:
    """A model's predictions for batches of one size."""
    return of(name, f"{model} inference, batch {options['batch_size']}", "inference", **options)


def _workload(name: str, title: str, family: str, folder: Path, *, target: str = "", **options: Any) -> Workload:
    file, _, attribute = (target or name).partition(":")
    return Workload(name, title, family, f"{folder / file}.py:{attribute or 'build'}", **options)


@dataclass(frozen=True, slots=True)
class Options:
    """How a workload is measured.

    ``timed_s`` is timed in each process; ``limit_s`` is the longest that a timing process may take. Caches and state
    are below ``caches``, with a folder for each workload, which is deleted after it. With ``reuse`` a session that the
    results hold is not run again.
    """

    results: Path
    caches: Path
    budget_s: int
    command: str
    timed_s: float = 1.0
    limit_s: float = 150.0
    reuse: bool = False

    def file_of(self, workload: Workload) -> Path:
        """The file of a workload's result."""
        return self.results / f"{workload.name}.json"


WORKLOADS = {
    workload.name: workload
    for workload in (
        _gpu("resnet50", "ResNet-50, batch 64", "classification"),
        _gpu("small_resnet18", "ResNet-18, 32x32, batch 128", "classification"),
        _own("mobilenet", "MobileNetV3, batch 128", "classification", target="vision:mobilenet"),
        _own("fcos", "FCOS detector, 256x256", "detection", timing_s=LONG_TIMING_S, target="vision:fcos"),
        _own("fcn", "FCN on ResNet-50, 256x256", "segmentation", target="vision:fcn"),
        _own("r3d", "3-D ResNet-18, 16 frames", "video", target="vision:r3d"),
        _own("convnext", "ConvNeXt-tiny", "timm", target="timm_models:convnext"),
        _own("mobile_rmsprop", "mobile network, RMSprop", "timm", timing_s=LONG_TIMING_S, target="timm_models:mobile"),
        _own("vit", "ViT-S", "timm", target="timm_models:vit"),
        _gpu("encoder", "transformer encoder", "encoder"),
        _own("bert", "BERT-base", "encoder", target="hugging_face:bert"),
        _gpu("gpt2", "GPT-2 with dropout", "decoder"),
        _own("llama", "Llama, 8 layers", "decoder", target="hugging_face:llama"),
        _own("t5", "T5-small", "encoder-decoder", timing_s=LONG_TIMING_S, target="hugging_face:t5"),
        _own("conformer", "Conformer", "audio", timing_s=LONG_TIMING_S, target="sound:conformer"),
        _own("wav2vec2", "wav2vec 2.0, 6 layers", "audio", target="sound:wav2vec2"),
        _own("sage", "GraphSAGE, 1 million edges", "graph"),
        _own("lstm", "LSTM language model", "recurrent", target="sequences:lstm"),
        _gpu("recommender", "recommender", "recommender"),
        _own("bags", "click model with embedding bags", "recommender"),
        _gpu("autoencoder", "convolutional autoencoder", "autoencoder"),
        _gpu("jpeg", "ResNet-18 from JPEG files", "input pipeline", timing_s=LONG_TIMING_S),
        _gpu("jpeg128", "MobileNetV3 from JPEG files", "input pipeline", timing_s=LONG_TIMING_S, target="jpeg:mobile"),
        _gpu("mlp12", "12-block MLP", "host-bound"),
        _own("tiny_transformer", "tiny transformer", "host-bound", target="sequences:tiny_transformer"),
        _own("diffusion", "diffusion U-Net, 32x32", "diffusion"),
        _own("unet3d", "3-D U-Net, 64x64x64", "segmentation"),
        _own("contrastive", "ResNet-18, two views", "contrastive", target="vision:contrastive"),
        _own("edsr", "super-resolution, 96x96", "super-resolution"),
        _own("pointnet", "PointNet, 1024 points", "point clouds"),
        _own("mixture", "decoder with a mixture of experts", "decoder"),
        _own("fourier", "Fourier neural operator", "operators", target="equations:fourier"),
        _own("physics", "physics-informed network", "physics", target="equations:physics"),
        _own("swin", "Swin-tiny", "timm", timing_s=LONG_TIMING_S, target="timm_models:swin"),
        _own("tagger", "tagger over packed sequences", "recurrent", target="sequences:tagger"),
        _own("augmented", "ResNet-18, images changed in Python", "input pipeline", target="vision:augmented"),
        _inference("infer1", "ResNet-50", _gpu, target="resnet50", batch_size=1),
        _inference("infer128", "ResNet-50", _gpu, target="resnet50", batch_size=128),
        _inference("mobilenet_infer1", "MobileNetV3", target="vision:mobilenet", batch_size=1),
        _inference("mobilenet_infer256", "MobileNetV3", target="vision:mobilenet", batch_size=256),
        _inference("vit_infer1", "ViT-S", target="timm_models:vit", batch_size=1),
        _inference("vit_infer128", "ViT-S", target="timm_models:vit", batch_size=128),
        _inference("bert_infer1", "BERT-base", target="hugging_face:bert_serve", batch_size=1),
        _inference("bert_infer8", "BERT-base", target="hugging_face:bert_serve", batch_size=8),
    )
}


def chosen(names: list[str]) -> list[Workload]:
    """The workloads of these names or families, all when there are none. Raises KeyError with an unknown one."""
    wanted: dict[str, Workload] = {}
    for name in names or WORKLOADS:
        found = [workload for workload in WORKLOADS.values() if name in (workload.name, workload.family)]
        if not found:
            raise KeyError(name)
        wanted.update({workload.name: workload for workload in found})
    return list(wanted.values())
