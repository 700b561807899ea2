"""MNIST's files, of a few random images of 8x8."""

import numpy as np


def write_mnist(folder, images=40):
    """Write the training and the test set where torchvision's MNIST looks for them."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pictures = np.random.default_rng(0).integers(0, 256, (images, 8, 8), dtype=np.uint8)
    labels = (np.arange(images) % 10).astype(np.uint8)
    for part in ("train", "t10k"):
        for name, array in ((f"{part}-images-idx3-ubyte", pictures), (f"{part}-labels-idx1-ubyte", labels)):
            head = np.array([0x0800 + array.ndim, *array.shape], ">i4").tobytes()
            (raw / name).write_bytes(head + array.tobytes())
