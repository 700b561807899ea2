"""``python -m advisor`` is ``perf-advisor``."""

import sys

from advisor.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
