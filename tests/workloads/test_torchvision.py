import named_models
import pytest
import torch
from named_models import one_step
from torch import nn

from advisor.records import Mode, TargetSpec
from advisor.workloads.entrypoint import load_target

_no_network = pytest.fixture(autouse=True)(named_models.refuse_the_network)


def load(name, **options):
    module, _, attribute = name.rpartition(".")
    return named_models.load(f"torchvision.models{module and '.' + module}:{attribute}", **options)


def shapes(loop):
    return [tuple(tensor.shape) for tensor in loop.data]


@pytest.mark.parametrize(
    ("name", "options", "expected", "classes"),
    [
        ("squeezenet1_1", {}, [(3, 224, 224), ()], 1000),
        ("squeezenet1_1", {"input_shape": (2, 3, 64, 64)}, [(3, 64, 64), ()], 1000),
        ("segmentation.lraspp_mobilenet_v3_large", {"input_shape": (2, 3, 64, 64)}, [(3, 64, 64), (64, 64)], 21),
        ("video.r3d_18", {"batch_size": 1}, [(3, 16, 112, 112), ()], 400),
    ],
)
def test_images_of_the_models_size_come_with_labels_of_its_classes(name, options, expected, classes):
    loop = load(name, **options)
    assert loop.mode is Mode.TRAIN
    assert [shape[1:] for shape in shapes(loop)] == expected
    assert 0 <= loop.data[1].min() <= loop.data[1].max() < classes
    assert loop.make_batch(3)[0].shape == (3, *expected[0])
    if "input_shape" in options:
        assert torch.isfinite(one_step(loop))
    elif not options:
        assert 1 <= loop.batch_size <= 32
        assert "--batch-size" in loop.notes[0]


def test_a_classifier_is_measured_for_inference():
    assert one_step(load("squeezenet1_1", input_shape=(2, 3, 64, 64), mode=Mode.INFER)).shape == (2, 1000)


def test_detection_trains_on_boxes_by_the_models_own_losses():
    loop = load("detection.ssdlite320_mobilenet_v3_large", batch_size=2)
    assert loop.mode is Mode.TRAIN
    images, targets = loop.data
    assert images.shape == (2, 3, 320, 320)
    assert [set(target) for target in targets] == [{"boxes", "labels"}] * 2
    assert torch.isfinite(one_step(loop))
    loop = load("detection.ssdlite320_mobilenet_v3_large", mode=Mode.INFER, input_shape=(1, 3, 320, 320))
    assert set(one_step(loop)[0]) == {"boxes", "labels", "scores"}


def test_masks_and_key_points_come_with_the_heads_that_learn_them():
    masks = load("detection.maskrcnn_resnet50_fpn", batch_size=1, input_shape=(1, 3, 64, 64)).data[1][0]
    points = load("detection.keypointrcnn_resnet50_fpn", batch_size=1, input_shape=(1, 3, 64, 64)).data[1][0]
    assert masks["masks"].shape == (4, 64, 64)
    assert points["keypoints"].shape == (4, 17, 3)


def test_optical_flow_has_two_images_and_the_flow_between_them():
    train, infer = (
        load("optical_flow.raft_small", mode=mode, input_shape=(1, 3, 128, 128)) for mode in (None, Mode.INFER)
    )
    assert train.mode is Mode.TRAIN
    assert shapes(train) == [(1, 3, 128, 128), (1, 3, 128, 128), (1, 2, 128, 128)]
    assert shapes(infer) == [(1, 3, 128, 128)] * 2


def test_modules_of_others_are_left_alone(tmp_path):
    (tmp_path / "of_torchvision.py").write_text(
        "from torchvision.models import resnet18\nfrom torch import ones\n"
        "def build():\n    return resnet18(num_classes=2), ones(1, 3, 32, 32)\n",
        encoding="utf-8",
    )
    loop = load_target(TargetSpec("of_torchvision.py", str(tmp_path)))
    assert loop.mode is Mode.INFER
    assert isinstance(loop.model, nn.Module)
    assert loop.data.shape == (1, 3, 32, 32)
