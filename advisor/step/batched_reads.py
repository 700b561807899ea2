"""A TensorDataset that a DataLoader reads a batch at a time: one indexing of each tensor, in place of one a sample."""

import typing

import torch


class BatchedTensors(torch.utils.data.TensorDataset):
    """A TensorDataset whose batch is read at once; PyTorch's loaders ask for it by ``__getitems__``."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        """The batch of these samples, as ``default_collate`` would make it of them."""
        return [tensor[indices] for tensor in self.tensors]


def reads_batches(dataset: typing.Any) -> typing.Any:
    """The dataset, or the one inside any number of ``Subset``, as :class:`BatchedTensors` over the same tensors."""
    if type(dataset) is torch.utils.data.Subset:
        return torch.utils.data.Subset(reads_batches(dataset.dataset), dataset.indices)
    return BatchedTensors(*dataset.tensors)


def as_it_is(batch: typing.Any) -> typing.Any:
    """The ``collate_fn`` for batches that were read at once."""
    return batch
