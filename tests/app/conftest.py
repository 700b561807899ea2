"""The garbage collector runs less often while the app is tested.

An app makes many thousands of small objects for every picture that it draws; looking through them again and again took
about a fifth of these tests' processor time when it was measured.
"""

import gc

import pytest


@pytest.fixture(scope="package", autouse=True)
def rare_collections():
    """Collect after fifty thousand new objects, not after a few hundred; as before once these tests are through."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, *before[1:])
    yield
    gc.set_threshold(*before)
