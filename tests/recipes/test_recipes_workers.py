"""Recipes for the workers of a DataLoader: how many there are, how far ahead they read, how long they live."""

import pytest
from loaders import LOADERS, Numbers, applied, every_loader, samples_of
from proposals import CATALOG
from torch.utils.data import DataLoader

OF_WORKERS = ["persistent_workers", "prefetch"]


def test_workers_get_their_options():
    assert applied("prefetch", 5, LOADERS["map-style"]()).prefetch_factor == 5
    assert applied("persistent_workers", True, LOADERS["map-style"]()).persistent_workers is True
    assert "persistent_workers=True" in CATALOG["persistent_workers"].code(True)
    assert CATALOG["num_workers"].code(8) == "loader = torch.utils.data.DataLoader(..., num_workers=8)\n"


@pytest.mark.parametrize("stay", [True, False])
def test_more_workers_live_on_between_epochs_as_the_present_ones_do(stay):
    changed = applied("num_workers", 2, DataLoader(Numbers(), num_workers=1, persistent_workers=stay))
    assert (changed.num_workers, changed.persistent_workers) == (2, stay)


@pytest.mark.process
@every_loader
def test_every_kind_of_loader_yields_the_same_samples(kind):
    loader = LOADERS[kind]()
    for recipe_id, value in {"prefetch": 3, "persistent_workers": True}.items():
        loader = applied(recipe_id, value, loader)
    assert loader.num_workers == 1
    assert samples_of(loader) == [float(number) for number in range(10)]


@pytest.mark.parametrize("recipe_id", OF_WORKERS)
def test_a_loader_without_workers_is_left_alone(recipe_id):
    loader = DataLoader(Numbers(), batch_size=4)
    value = {"prefetch": 4, "persistent_workers": True}[recipe_id]
    assert applied(recipe_id, value, loader) is loader
    key = CATALOG[recipe_id].key
    assert "about workers" in CATALOG.conflict({key: value, "data.num_workers": 0})
    assert CATALOG.conflict({key: value, "data.num_workers": 2}) is None
