"""Recipes for the workers of a DataLoader: how they start, how many threads they have, how far ahead they are."""

import importlib

import pytest
from facts import cpu_facts, loader_facts, profile_facts
from loaders import LOADERS, Numbers, both_ways, every_loader, samples_of
from proposals import CATALOG, proposed, reason
from torch import nn
from torch.utils.data import DataLoader

from advisor.export.python_file import python_source

OF_WORKERS = ["persistent_workers", "prefetch"]


@both_ways
def test_workers_get_their_options(change):
    assert change("prefetch", 5, LOADERS["map-style"]()).prefetch_factor == 5
    assert change("persistent_workers", True, LOADERS["map-style"]()).persistent_workers is True


class ToldOfEpochs(Numbers):
    def set_epoch(self, epoch):
        self.epoch = epoch


@both_ways
@pytest.mark.parametrize("stay", [True, False])
def test_more_workers_live_on_between_epochs_as_the_present_ones_do(change, stay):
    changed = change("num_workers", 2, DataLoader(ToldOfEpochs(), num_workers=1, persistent_workers=stay))
    assert (changed.num_workers, changed.persistent_workers) == (2, stay)


@pytest.mark.process
@both_ways
@every_loader
def test_every_kind_of_loader_yields_the_same_samples(change, kind):
    loader = LOADERS[kind]()
    settings = {"prefetch": 3, "persistent_workers": True}
    for recipe_id, value in settings.items():
        loader = change(recipe_id, value, loader)
    assert loader.num_workers == 1
    assert samples_of(loader) == [float(number) for number in range(10)]


@both_ways
@pytest.mark.parametrize("recipe_id", OF_WORKERS)
def test_a_loader_without_workers_is_left_alone(change, recipe_id):
    loader = DataLoader(Numbers(), batch_size=4)
    value = {"prefetch": 4, "persistent_workers": True}[recipe_id]
    assert change(recipe_id, value, loader) is loader
    key = CATALOG[recipe_id].key
    assert "about workers" in CATALOG.conflict({key: value, "data.num_workers": 0})
    assert CATALOG.conflict({key: value, "data.num_workers": 2}) is None


@pytest.mark.parametrize("recipe_id", OF_WORKERS)
def test_workers_are_needed(recipe_id):
    assert "no workers" in reason(recipe_id, cpu_facts(loader=loader_facts()))
    assert "does not come from a DataLoader" in reason(recipe_id, cpu_facts())
    none_tried = loader_facts(state_problem="samples depend on a count")
    assert reason(recipe_id, cpu_facts(loader=none_tried)) == "the loader has no workers: samples depend on a count"


def test_values_for_a_loader_with_workers():
    short = loader_facts(num_workers=4, length=20)
    facts = cpu_facts(loader=short, profile=profile_facts())
    assert proposed("prefetch", facts) == [4, 8]
    assert proposed("persistent_workers", facts) == [True]


def test_what_the_user_has_is_measured_off():
    current = {"data.prefetch_factor": 8, "data.persistent_workers": True}
    facts = cpu_facts(loader=loader_facts(num_workers=4, length=20), profile=profile_facts(), current=current)
    assert proposed("prefetch", facts) == [4, 2]
    assert proposed("persistent_workers", facts) == [False]


def test_what_cannot_be_measured_or_cannot_gain_is_skipped():
    assert "an epoch takes about 1 min 40 s" in reason(
        "persistent_workers", cpu_facts(loader=loader_facts(num_workers=2, length=1000), profile=profile_facts())
    )


@pytest.mark.process
def test_the_exported_file_sets_up_the_workers(tmp_path, monkeypatch):
    settings = {"data.prefetch_factor": 3, "data.persistent_workers": True}
    source = python_source(CATALOG, {**settings, "data.num_workers": 2}, "train")
    (tmp_path / "tuned_workers.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    tuned = importlib.import_module("tuned_workers")
    _, _, loader = tuned.prepare(nn.Linear(1, 1), None, DataLoader(Numbers(), batch_size=5))
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
