import subprocess
import sys

import torch

from advisor.workloads import demo


def test_it_is_a_small_convolutional_network_on_images_of_a_loader():
    built = demo.build()
    size = demo.BATCH_SIZE if torch.cuda.is_available() else demo.SMALL_BATCH_SIZE
    images, labels = next(iter(built.data))
    assert images.shape == (size, 3, 96, 96)
    assert built.model(images).shape == (size, 10)
    assert 0 <= labels.min() <= labels.max() < 10


def test_importing_it_imports_no_torch():
    script = "import sys, advisor.workloads.demo; print('torch' in sys.modules, 'PIL' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "False"]
