"""The batches that a trial draws in its own process: the same under every loader setting, and away from the dataset."""

import pytest
import torch
from loaders import Stream
from torch.utils.data import DataLoader, Dataset, TensorDataset, get_worker_info

from advisor.errors import TargetError
from advisor.step.loader import rebuild
from advisor.trial.measurement.draws import check_batches, probe_batches


class Noisy(Dataset):
    """Augmented samples, and a file that is opened with the first."""

    file = None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.file = "open"
        return torch.rand(2) + index


def test_every_trial_draws_the_same_batches_whatever_its_workers():
    loader = DataLoader(Noisy(), batch_size=2, shuffle=True)
    drawn = [probe_batches(one, 3)[:2] for one in (loader, rebuild(loader, num_workers=2), loader)]
    assert all(torch.equal(torch.cat(batches), torch.cat(drawn[0])) for batches in drawn)
    assert not torch.equal(torch.cat(probe_batches(loader, 4)[:2]), torch.cat(drawn[0]))
    assert loader.dataset.file is None  # workers that are forked later open their own


class InWorkers(Noisy):
    def __getitem__(self, index):
        return get_worker_info().id


@pytest.mark.process
def test_a_dataset_that_needs_a_worker_is_read_in_one():
    assert probe_batches(DataLoader(InWorkers(), num_workers=1), 0)[0].tolist() == [0]
    with pytest.raises(TargetError, match="failed at batch 1"):
        probe_batches(DataLoader(InWorkers()), 0)


class Own(DataLoader):
    """A loader that cannot be made anew."""

    def __init__(self, data, secret):
        super().__init__(TensorDataset(data), batch_size=2)


def test_a_loader_that_cannot_be_made_anew_is_read_as_it_is():
    assert len(probe_batches(Own(torch.arange(6), 1), 0)) == 3
    assert len(probe_batches(DataLoader(Stream(), batch_size=4), 0)) == 3


@pytest.mark.parametrize(
    ("batches", "problem"),
    [([], "yields no batch"), ([torch.ones(2), []], "2 .* no sample"), ([torch.ones(0, 2)], "1 .* no sample")],
)
def test_batches_that_no_step_can_run_on_are_the_targets_fault(batches, problem):
    with pytest.raises(TargetError, match=problem):
        check_batches(batches, of_loader=True)
