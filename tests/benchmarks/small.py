"""The workloads at sizes for a machine without a GPU: to try the benchmark out, not to measure anything."""

import importlib.util
import sys
from pathlib import Path

FOLDERS = (Path(__file__).parents[1] / "gpu" / "workloads", Path(__file__).parent / "workloads")


def module_of(file):
    """A file as a module that compilers can find again."""
    spec = importlib.util.spec_from_file_location(f"workload_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _with(name, attribute="build", **sizes):
    """The ``build`` of a workload file, at other sizes."""

    def build():
        (file,) = (folder / f"{name}.py" for folder in FOLDERS if (folder / f"{name}.py").exists())
        module = module_of(file)
        vars(module).update(sizes)
        return getattr(module, attribute)()

    return build


def resnet50():
    model, (images, labels), *rest = _with("resnet50", BATCH=2)()
    return model, (images[..., :32, :32].contiguous(), labels), *rest


_BERT = {"WIDTH": 32, "HEADS": 2, "LAYERS": 1, "LENGTH": 16, "VOCABULARY": 101, "BATCH": 2}

small_resnet18 = _with("small_resnet18", BATCH=4)
mobilenet = _with("mobilenet", BATCH=2, SIDE=32, CLASSES=10)
fcos = _with("fcos", SIDE=64, BATCH=1, BOXES=2)
fcn = _with("fcn", SIDE=32, BATCH=2)
r3d = _with("r3d", FRAMES=4, SIDE=32, BATCH=2)

_TIMM = {
    "NAMES": {"convnext": "test_convnext", "mobile": "test_efficientnet", "swin": "test_vit", "vit": "test_vit"},
    **{"SIDE": 160, "LARGEST_BATCH": 2, "CLASSES": 10},
}
timm_models_convnext, timm_models_mobile, timm_models_swin, timm_models_vit = (
    _with("timm_models", name, **_TIMM) for name in ("convnext", "mobile", "swin", "vit")
)

encoder = _with("encoder", WIDTH=64, HEADS=4, LAYERS=1, LENGTH=16, BATCH=2)
bert = _with("bert", **_BERT)
bert_serve = _with("bert", "serve", **_BERT)
gpt2 = _with("gpt2", WIDTH=64, HEADS=4, BLOCKS=1, VOCABULARY=101, LENGTH=16, BATCH=2)
llama = _with("llama", WIDTH=32, HEADS=2, LAYERS=1, LENGTH=16, VOCABULARY=101, BATCH=2)
t5 = _with("t5", WIDTH=32, HEADS=2, LAYERS=1, VOCABULARY=101, LENGTH=16, TARGET_LENGTH=8, BATCH=2)
conformer = _with("conformer", FEATURES=8, WIDTH=16, HEADS=2, LAYERS=1, FRAMES=40, BATCH=2, LABELS=10)
wav2vec2 = _with(
    "wav2vec2",
    SAMPLES=4000,
    FRAMES=12,
    BATCH=2,
    SIZES={"encoder_embed_dim": 32, "encoder_num_layers": 1, "encoder_num_heads": 2, "encoder_ff_interm_features": 64},
)
sage = _with("sage", NODES=100, EDGES=400, FEATURES=8, WIDTH=16, LAYERS=2, CLASSES=5)
lstm = _with("lstm", WIDTH=32, LAYERS=1, VOCABULARY=101, LENGTH=8, BATCH=2)
recommender = _with("recommender", TABLES=3, ROWS=100, WIDTH=8, BATCH=16)
bags = _with("bags", TABLES=2, ROWS=100, WIDTH=8, BAG=4, BATCH=16)
autoencoder = _with("autoencoder", WIDTHS=(3, 8, 16), BATCH=2, SIZE=32)
jpeg = _with("jpeg", IMAGES=8, SIDE=64, BATCH=4, CLASSES=10)
jpeg_mobile = _with("jpeg", "mobile", MOBILE_IMAGES=8, SIDE=64, CROP=32, MOBILE_BATCH=4, CLASSES=10)
mlp12 = _with("mlp12", WIDTH=32, BLOCKS=2, BATCH=16)
tiny_transformer = _with("tiny_transformer", WIDTH=32, LAYERS=1, LENGTH=8, BATCH=2)
diffusion = _with("diffusion", WIDTH=16, SIDE=8, BATCH=2)
unet3d = _with("unet3d", WIDTH=4, SIDE=8, BATCH=1)
contrastive = _with("contrastive", WIDTH=16, SIDE=16, BATCH=4)
edsr = _with("edsr", WIDTH=8, BLOCKS=1, SIDE=8, BATCH=1)
pointnet = _with("pointnet", POINTS=16, CLASSES=5, BATCH=2)
mixture = _with("mixture", WIDTH=32, HEADS=2, LAYERS=1, EXPERTS=2, LENGTH=8, VOCABULARY=101, BATCH=2)
fourier = _with("fourier", WIDTH=4, MODES=2, LAYERS=1, SIDE=9, BATCH=2)
physics = _with("physics", WIDTH=8, LAYERS=1, POINTS=16, STARTS=4)
tagger = _with("tagger", WIDTH=8, LAYERS=2, LENGTH=10, VOCABULARY=101, TAGS=3, BATCH=2)
augmented = _with("augmented", IMAGES=8, SIDE=32, BATCH=4)
