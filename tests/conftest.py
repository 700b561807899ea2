"""Nothing that a test measures lands in the user's own state folder: trials inherit the environment of the tests."""

import os
import tempfile


def pytest_configure(config):
    if "PERF_ADVISOR_STATE" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="perf-advisor-tests-", ignore_cleanup_errors=True)
        os.environ["PERF_ADVISOR_STATE"] = folder.name
        config.add_cleanup(folder.cleanup)
