"""``python -m advisor`` runs ``perf-advisor``."""

import sys

# Python puts the working directory first in sys.path: a select.py there must not replace Python's own module.
if __name__ == "__main__" and not sys.flags.safe_path and __file__ != f"{sys.path[0]}/advisor/__main__.py":
    del sys.path[0]

from advisor.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
