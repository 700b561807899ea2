"""Batches that are padded to few lengths."""

import pytest
import torch
from loaders import applied
from torch.utils.data import DataLoader, IterableDataset

from advisor.errors import RefusedError
from advisor.inlined.lengths import PadsToMultiple

LENGTHS = (30, 20, 10, 25)


def filled(tensor, value):
    """A batch with this value behind each sample's length."""
    for row, length in zip(tensor, LENGTHS, strict=True):
        row[length:] = value
    return tensor


def batch():
    return {
        "input_ids": filled(torch.randint(3, 99, (4, 30)), 1),
        "attention_mask": filled(torch.ones(4, 30, dtype=torch.bool), False),
        "token_type_ids": torch.zeros(4, 30, dtype=torch.long),
        "features": filled(torch.rand(4, 30, 5) + 1, 0.0),
        "labels": filled(torch.randint(3, 9, (4, 30)), -100),
        "kinds": torch.arange(4),
        "scores": torch.rand(4, 7) + 1,
    }


class Streamed(IterableDataset):
    def __iter__(self):
        return iter([(torch.randint(3, 99, (length,)), 1) for length in LENGTHS])


def test_all_of_the_length_is_padded_as_its_tails_are():
    written, padded = batch(), PadsToMultiple(lambda samples: samples, 16)
    found = padded({name: tensor.clone() for name, tensor in written.items()})
    for name, fill in {"input_ids": 1, "attention_mask": 0, "token_type_ids": 0, "features": 0, "labels": -100}.items():
        assert found[name].shape[1] == 32
        assert torch.equal(found[name][:, :30], written[name])
        assert (found[name][:, 30:] == fill).all()
    assert torch.equal(found["kinds"], written["kinds"])
    assert torch.equal(found["scores"], written["scores"])


@pytest.mark.parametrize(
    "tensors",
    [
        [torch.randint(3, 99, (4, 30)), torch.arange(4)],  # samples of one length
        [filled(torch.randint(3, 99, (4, 30)), 0), torch.arange(30).expand(4, 30)],  # positions, which are not filled
        [torch.cat([torch.randint(3, 99, (4, 29)), torch.full((4, 1), 2)], 1)],  # each ends in a mark, not in padding
    ],
)
def test_a_batch_that_does_not_show_its_padding_stays(tensors):
    found = PadsToMultiple(lambda samples: samples, 16)(list(tensors))
    assert all(torch.equal(one, other) for one, other in zip(found, tensors, strict=True))


def test_a_full_batch_is_padded_as_those_before_it_were():
    padded = PadsToMultiple(lambda samples: samples, 16)
    padded([filled(torch.randint(3, 99, (4, 30)), 0)])
    (found,) = padded([torch.full((4, 40), 7)])
    assert found.shape == (4, 48)
    assert not found[:, 40:].any()


def test_a_size_that_is_equal_by_chance_is_padded_no_longer():
    padded = PadsToMultiple(lambda samples: samples, 16)
    padded([filled(torch.randint(3, 99, (4, 30)), 0), torch.rand(4, 7)])
    ids, scores = padded([filled(torch.randint(3, 99, (4, 30)), 0)[:, :30], torch.rand(4, 30)])
    assert (ids.shape[1], scores.shape[1]) == (32, 30)


def test_texts_that_stand_in_columns_are_left():
    """As of nn.Transformer's usual batches: the first size is the length, and texts and targets differ in it."""
    texts, targets = (filled(torch.randint(3, 99, (4, 30)), 1)[:, :length].T for length in (30, 29))
    found = PadsToMultiple(lambda samples: samples, 16)([texts[:, :3], targets[:, :3]])
    assert [tuple(one.shape) for one in found] == [(30, 3), (29, 3)]


def padded_texts(some):
    texts, kinds = zip(*some, strict=True)
    return torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True), torch.tensor(kinds)


def loader_of(lengths, **options):
    samples = [(torch.randint(3, 99, (length,)), 1) for length in lengths]
    return DataLoader(samples, batch_size=4, collate_fn=padded_texts, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_all_workers_pad_from_the_first_batch_to_no_more_than_the_longest_sample(workers):
    # The first two batches are full and do not show what fills texts; a table of 50 positions takes no 64.
    lengths = [20] * 8 + [50, 7, 9, 3] * 8 + [33, 30, 20, 10]
    loader = applied("pad_batches", 16, loader_of(lengths, num_workers=workers))
    assert [texts.shape[1] for texts, _ in loader] == [32] * 2 + [48 + 2] * 8 + [48]


@pytest.mark.parametrize(
    "loader",
    [loader_of([20] * 40), DataLoader(Streamed(), batch_size=4, collate_fn=padded_texts)],
    ids=["full", "iterable"],
)
def test_a_loader_that_shows_no_padding_beforehand_is_refused(loader):
    with pytest.raises(RefusedError):
        applied("pad_batches", 16, loader)


def test_a_mask_whose_full_samples_are_most_is_padded_as_its_ids_are():
    padded, lengths = PadsToMultiple(lambda samples: samples, 16), ([20] * 5 + [7, 9, 3], [17, 5, 6, 7, 8, 9, 3, 2])
    for longest, each in zip((20, 17), lengths, strict=True):
        ids, mask = torch.randint(3, 99, (8, longest)), torch.ones(8, longest, dtype=torch.long)
        for row, length in enumerate(each):
            ids[row, length:] = mask[row, length:] = 0
        found, keeps = padded([ids, mask])
    assert found.shape == keeps.shape == (8, 32)
    assert not keeps[:, 17:].any()
