import os
import subprocess
import sys
import tempfile

import forked
import pytest
import torch
from PIL import Image

from advisor import Workload
from advisor.workloads import demo


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def full_folder(tmp_path_factory):
    """The folder with all of its images, which take seconds to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("demo")))
        yield demo.image_folder()


@pytest.fixture(scope="module")
def built(full_folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(full_folder.parent))
        torch.manual_seed(0)
        yield demo.build()


def test_it_is_a_workload_of_a_small_convolutional_network(built):
    assert isinstance(built, Workload)
    parameters = sum(parameter.numel() for parameter in built.model.parameters())
    assert 100_000 <= parameters <= 300_000
    assert isinstance(built.optimizer, torch.optim.SGD)
    loader = built.data
    size = demo.BATCH_SIZE if torch.cuda.is_available() else demo.SMALL_BATCH_SIZE
    assert (loader.batch_size, loader.num_workers, len(loader)) == (size, 0, 640 // size)
    assert isinstance(loader.sampler, torch.utils.data.RandomSampler)
    images, labels = next(iter(loader))
    assert images.shape == (size, 3, 96, 96)
    assert built.model(images).shape == (size, 10)
    assert 0 <= labels.min() <= labels.max() < 10


@pytest.mark.process
def test_it_learns(built):
    built.model.train()
    losses = []
    for images, labels in built.data:
        loss = built.loss(built.model(images), labels)
        built.optimizer.zero_grad()
        loss.backward()
        built.optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])


def test_the_folder_is_made_once(full_folder, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(full_folder.parent))
    folder = full_folder
    assert folder.name == f"perf-advisor-demo-v1-{os.getuid()}"
    files = sorted(folder.rglob("*.jpg"))
    assert len(files) == 640
    with Image.open(files[0]) as image:
        assert (image.format, image.size) == ("JPEG", (160, 160))
    stamp = folder.stat().st_mtime_ns, files[0].stat().st_mtime_ns
    assert demo.image_folder() == folder
    assert (folder.stat().st_mtime_ns, files[0].stat().st_mtime_ns) == stamp


def test_an_incomplete_folder_is_made_again(temporary, monkeypatch):
    monkeypatch.setattr(demo, "IMAGES_PER_CLASS", 2)
    folder = demo.image_folder()
    (folder / "class_3" / "001.jpg").unlink()
    assert demo.image_folder() == folder
    assert len(list(folder.rglob("*.jpg"))) == 20
    assert sorted(path.name for path in temporary.iterdir()) == [folder.name]


def test_a_failure_leaves_no_folder(temporary, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo, "_image", full)
    with pytest.raises(OSError, match="No space left"):
        demo.image_folder()
    assert list(temporary.iterdir()) == []


@pytest.mark.process
def test_processes_that_start_together_share_one_folder(temporary):
    script = (
        "from pathlib import Path\n"
        "from advisor.workloads import demo\n"
        "demo.IMAGES_PER_CLASS = 8\n"
        "print(len(list(demo.image_folder().rglob('*.jpg'))))\n"
    )
    ended = [
        program.ended()
        for program in [forked.Program(script, environment={"TMPDIR": str(temporary)}) for _ in range(3)]
    ]
    assert [(one.returncode, one.stdout.strip()) for one in ended] == [(0, "80")] * 3
    assert len(list(temporary.iterdir())) == 1


def test_importing_it_imports_no_torch():
    script = "import sys, advisor.workloads.demo; print('torch' in sys.modules, 'PIL' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "False"]
