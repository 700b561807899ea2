"""Watching the operators of a step. The device "meta" stands in for a GPU."""

import pytest
import torch

from advisor.step.observed_step import ObservedStep

META = torch.device("meta")
WEIGHT = torch.ones(4, device=META)
NUMBER, TABLE, COUNT = torch.tensor(2.0), torch.ones(4), torch.tensor(0.0)


def observed(call, batch=()):
    with ObservedStep(META, batch) as seen:
        call()
    return seen


def counts():
    COUNT.add_(1)


def counts_several():
    torch._foreach_add_([COUNT], 1.0)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: WEIGHT * 2, ""),
        (lambda: WEIGHT * NUMBER, ""),  # a number of the host, as the kernel takes it
        (lambda: WEIGHT + torch.tensor(0.5), ""),
        (lambda: torch.ones(3, device="meta"), ""),
        (lambda: torch.ones(3) + 1, ""),  # on the host alone
        (lambda: TABLE.to("meta"), "copies between the host and the GPU"),
        (lambda: NUMBER.to("meta"), "copies between the host and the GPU"),
        (lambda: torch.empty(4, device="meta").copy_(TABLE), "copies between the host and the GPU"),
        (counts, "changes a tensor on the host"),
        (counts_several, "changes a tensor on the host"),
    ],
)
def test_what_no_graph_repeats(call, said):
    problem = observed(call).problem
    assert (said in problem) if said else not problem


def test_the_users_line_is_named():
    problem = observed(lambda: TABLE.to("meta")).problem
    assert "(test_observed_step.py:" in problem


def test_equal_steps_are_the_same_and_others_name_the_first_operator():
    def step(batch, factor):
        return (batch * factor).sum() + WEIGHT.sum()

    first, second, third = (
        observed(lambda batch=batch, factor=factor: step(batch, factor), batch)
        for batch, factor in (
            (torch.ones(4, device=META), 2.0),
            (torch.ones(4, device=META), 2.0),
            (WEIGHT.clone(), 3.0),
        )
    )
    assert second.differs_from(first) == ""
    assert "first in aten.mul.Tensor" in third.differs_from(first)


def test_values_of_small_tensors_that_are_made_in_a_step_are_compared():
    first, second = (observed(lambda value=value: WEIGHT + torch.tensor(value)) for value in (0.5, 0.6))
    assert "the same operators with the same numbers" in second.differs_from(first)


def test_what_a_step_reads_was_there_before():
    seen = observed(lambda: WEIGHT * 2 + 1)
    assert seen.has_read(WEIGHT)
    assert len(seen.read) == 1


def test_a_number_on_the_host_is_kept_with_its_value():
    assert observed(lambda: WEIGHT * NUMBER).numbers == [(NUMBER, 2.0)]
