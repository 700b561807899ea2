import subprocess
import sys

import torch

from advisor import Workload
from advisor.workloads import demo


def test_it_is_a_workload_of_a_small_convolutional_network():
    built = demo.build()
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


def test_importing_it_imports_no_torch():
    script = "import sys, advisor.workloads.demo; print('torch' in sys.modules, 'PIL' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "False"]
