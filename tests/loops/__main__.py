"""Makes ``python -m tests.loops`` find the modules as the tests do."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from loops.table import main  # noqa: E402

if __name__ == "__main__":
    main()
