"""``python -m advisor`` is ``perf-advisor``."""

import sys

# As for the command, a select.py of the working directory is none of Python's.
if __name__ == "__main__" and not sys.flags.safe_path and __file__ != f"{sys.path[0]}/advisor/__main__.py":
    del sys.path[0]

from advisor.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
