"""What a person is told when the first step of the workload fails."""

import errno

from torch import nn, randn

from advisor.step.batch import splitter
from advisor.trial.raised import fitting_hint, result_of


class Pair(nn.Module):
    def forward(self, image1, image2, scale=1.0):
        return (image1 - image2) * scale


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing failed")


def by_us(model, batch):
    """What a call raises whose frames are all a library's."""
    error = raised(lambda: model(batch))
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = error.__traceback__.tb_next
    return error


def test_an_input_that_a_batch_lacks_is_named_with_the_batch_that_has_it():
    batch = randn(2, 3, 8, 8)
    hint = fitting_hint(Pair(), batch, by_us(Pair(), batch))
    assert "needs image2 too" in hint
    assert '{"image1": ..., "image2": ...}' in hint
    assert "float32[2, 3, 8, 8]" in hint


def test_a_batch_as_the_hint_says_is_taken():
    split = splitter(Pair(), with_target=False)({"image1": randn(2), "image2": randn(2)})
    Pair()(*split.args, **split.kwargs)


def test_a_refusal_of_the_system_says_what_to_do():
    result = result_of(OSError(errno.EMFILE, "Too many open files"), channel=None)
    assert result.reason == "OSError: [Errno 24] Too many open files"
    assert "ulimit -n" in result.hint


def test_a_shape_that_does_not_fit_is_told():
    model = nn.Linear(32, 8)
    hint = fitting_hint(model, randn(4, 31), raised(lambda: model(randn(4, 31))))
    assert "float32[4, 31]" in hint
    assert "loss" in hint


def test_a_call_in_the_users_own_loss_is_not_ours_to_mend():
    hint = fitting_hint(Pair(), randn(2), raised(lambda: Pair()(randn(2))))
    assert "image2" not in hint
