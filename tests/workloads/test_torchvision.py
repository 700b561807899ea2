import named_models
import torch
from named_models import one_step
from torch import nn

from advisor.records import Mode, TargetSpec
from advisor.workloads.entrypoint import load_target


def load(name, **options):
    module, _, attribute = name.rpartition(".")
    return named_models.load(f"torchvision.models{module and '.' + module}:{attribute}", **options)


def shapes(loop):
    return [tuple(tensor.shape) for tensor in loop.data]


def test_a_classifier_is_trained_on_images_of_its_own_size():
    loop = load("squeezenet1_1")
    assert loop.mode is Mode.TRAIN
    assert 1 <= loop.batch_size <= 32
    assert "--batch-size" in loop.notes[0]
    assert shapes(loop)[0][1:] == (3, 224, 224)
    assert 0 <= loop.data[1].min() <= loop.data[1].max() < 1000
    assert loop.make_batch(3)[0].shape == (3, 3, 224, 224)


def test_a_classifier_runs_a_step_in_either_mode():
    train = load("squeezenet1_1", input_shape=(2, 3, 64, 64))
    assert shapes(train) == [(2, 3, 64, 64), (2,)]
    assert torch.isfinite(one_step(train))
    infer = load("squeezenet1_1", input_shape=(2, 3, 64, 64), mode=Mode.INFER)
    assert one_step(infer).shape == (2, 1000)


def test_segmentation_has_a_class_for_each_pixel_and_downloads_nothing(monkeypatch):
    named_models.refuse_the_network(monkeypatch)
    loop = load("segmentation.lraspp_mobilenet_v3_large", input_shape=(2, 3, 64, 64))
    labels = loop.data[1]
    assert labels.shape == (2, 64, 64)
    assert labels.max() < 21
    assert torch.isfinite(one_step(loop))


def test_video_has_clips_of_the_weights_crop_and_classes():
    loop = load("video.r3d_18", batch_size=1)
    assert shapes(loop) == [(1, 3, 16, 112, 112), (1,)]
    assert loop.data[1].max() < 400


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
