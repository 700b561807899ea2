"""Print the table of loops: ``python -m tests.loops [cpu|cuda]``. It finds the modules as the tests do."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from loops.test_loops import print_table  # noqa: E402

if __name__ == "__main__":
    print_table(sys.argv[1:])
