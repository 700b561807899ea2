"""Real trials of a loader whose class does work of its own: what they say of the data that the model saw."""

import pytest
from trial_processes import spec_of

from advisor.judging.numerics import compare_numerics
from advisor.records import Inspected, Numerics, Outcome, TrialKind
from advisor.runner.trials import Runner

TARGET = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Noise(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.rand(4), index % 2


class Sevens(DataLoader):
    def __iter__(self):
        return ([inputs * 0 + 7, labels] for inputs, labels in super().__iter__())


class Stream(IterableDataset):
    def __iter__(self):
        return ((torch.rand(4), index % 2) for index in range(64))


def build():
    return nn.Linear(4, 2), Sevens(Noise(), batch_size=4, shuffle=True), nn.functional.cross_entropy


def stream():
    return nn.Linear(4, 2), DataLoader(Stream(), batch_size=4), nn.functional.cross_entropy
"""


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trials")
    (folder / "target.py").write_text(TARGET, encoding="utf-8")
    Runner.prepare()

    def run(name, **changes):
        messages = []
        return Runner().run(spec_of(folder, f"target.py:{name}", **changes), messages.append), messages

    return run


def test_a_class_with_work_of_its_own_is_measured_as_it_is(trial):
    baseline, messages = trial("build", kind=TrialKind.BASELINE)
    result, _ = trial("build", settings={"data.num_workers": 1})
    assert result.measured
    loader = next(message.workload.loader for message in messages if isinstance(message, Inspected))
    assert (loader.copy_problem, loader.workers_problem) == ("", "")
    numerics = compare_numerics(result, baseline, Numerics.EXACT)
    assert (numerics.measured, numerics.text) == (Numerics.EXACT, "the losses are equal to the bit")


def test_samples_that_every_worker_would_repeat_end_the_trial_with_the_reason(trial):
    result, _ = trial("stream", settings={"data.num_workers": 2})
    assert result.outcome is Outcome.FAILED
    assert result.reason == "every worker would yield all samples: shard the dataset by get_worker_info()"
