"""Makes ``python -m tests.faults`` find the modules as the tests do."""

import os
import sys
from pathlib import Path

# Set, torch asks NVML whether there is a GPU; the usual way to ask would spoil CUDA in the lanes, which are forks.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from faults.table import main  # noqa: E402

if __name__ == "__main__":
    main()
