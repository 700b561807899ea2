"""Trials that fail, hang or are cancelled: each gives a result, and its process group ends."""

import re
import threading
import time

import psutil
import pytest
from planted import TINY_TARGET
from trial_processes import SLEEPING, SOON_S, appears, building, gone

from advisor.records import Outcome, TrialKind
from advisor.runner.trials import Runner

pytestmark = pytest.mark.usefixtures("warm_fork_server")

FORWARD = "return 1.0 * x"
NO_ROOM, MEMORY, FIX = "raise MemoryError('no room')", Outcome.OUT_OF_MEMORY, "Fix the lines below"
FAILED, STEP = Outcome.FAILED, "the first step failed: "
UNFIT = TINY_TARGET.replace("torch.randn(8, 16)", "torch.randn(8, 15)")
DEEP = TINY_TARGET.replace("Pause(), nn", "nn.Sequential(Pause(), nn.Linear(33, 32)), nn")
SUM = TINY_TARGET.replace("nn.CrossEntropyLoss()", "lambda o, t: (o - t).sum()")


def in_step(line, text=TINY_TARGET):
    return text.replace(FORWARD, line)


# The text of a target, the outcome of its baseline, and what is said of it: the reason begins with the first.
FAILING = {
    "no model": ("x = 1\n", FAILED, "target.py ended without a training loop", "after --"),
    # Newer versions of PyTorch name the operator first.
    "a shape": (UNFIT, FAILED, f"{STEP}RuntimeError: (addmm: )?mat1 and mat2", "the loss"),
    "a layer": (DEEP, FAILED, STEP, "'2.1' of Sequential, Linear(in_features=33", ", got float32[8, 32]."),
    "its own": (in_step("return x + torch.ones(3)"), FAILED, STEP, "Pause(), got float32[8, 32].\n", "torch.ones(3)"),
    "a loss": (TINY_TARGET.replace("(4, (8,))", "(4, (9,))"), FAILED, STEP, "Loss() got float32[8, 4], int64[9]."),
    "a backward pass": (in_step("return x.exp_()"), FAILED, STEP, "backward pass"),
    "memory of a build": (building(NO_ROOM), MEMORY, "no room"),
    "memory of a step": (in_step(NO_ROOM), MEMORY, "no room"),
    "PyTorch's memory": (in_step("return x * torch.empty(2**60)[0]"), MEMORY, "can't allocate memory: you tried"),
    "another program": (building("os.kill(os.getpid(), 15)"), Outcome.CRASHED, ".* by SIGTERM", "run again"),
    "a kill": (building("os.kill(os.getpid(), 9)"), MEMORY, ".* by SIGKILL", "smaller batch size"),
    "an exit": (building("os._exit(3)"), Outcome.CRASHED, "the trial process ended with exit code 3", "as os._exit"),
    "SystemExit": (in_step("raise SystemExit('no data')"), FAILED, "", FIX, "raise SystemExit"),
    "KeyboardInterrupt": (in_step("raise KeyboardInterrupt()"), FAILED, "", FIX, "raise KeyboardInterrupt"),
    "no number": (SUM.replace("(o - t).sum()", "o + t"), FAILED, ".* works in neither form", "loss(output, target)"),
    "no form of the loss": (in_step("raise ValueError('boom')", SUM), FAILED, f"{STEP}ValueError: boom", "ValueError"),
}


@pytest.mark.parametrize("case", FAILING.values(), ids=FAILING)
def test_a_target_that_fails_is_a_result(trial, case):
    text, outcome, reason, *others = case
    result, _ = trial(text, kind=TrialKind.BASELINE)
    assert result.outcome is outcome
    assert re.match(reason, result.reason)
    assert all(other in f"{result.hint}\n{result.details}" for other in others)
    assert not re.search('File ".*/(site-packages|advisor)/', result.details)


@pytest.mark.timed
def test_steps_that_are_too_long_for_the_budget_are_refused_before_the_time_out(trial):
    slow = TINY_TARGET.replace("return 1.0 * x", "import time; time.sleep(1.0); return 1.0 * x")
    started = time.monotonic()
    result, _ = trial(slow, kind=TrialKind.BASELINE, timeout_s=10.0)
    assert time.monotonic() - started < 10.0
    assert (result.outcome, result.blocks) == (Outcome.TIMED_OUT, ())
    assert re.search(r"one step takes about 1 s: measuring the baseline alone needs", result.reason)
    assert "--budget" in result.hint


def test_a_crash_names_the_signal(trial):
    result, _ = trial(building("print('before', flush=True); ctypes.string_at(0)"))
    assert result.outcome is Outcome.CRASHED
    assert "SIGSEGV" in result.reason
    assert result.hint.startswith("Leave out the first call below")
    before, _, calls = result.details.partition("Fatal Python error: Segmentation fault, the innermost call first:\n")
    assert before == "before\n"
    assert re.match(r'  File ".*ctypes.*", line \d+ in string_at\n  File ".*target.py", line \d+ in build\n', calls)
    assert "total:" not in calls


def test_a_hang_is_timed_out_and_its_whole_group_ends(trial, tmp_path):
    pids = tmp_path / "pids"
    result, _ = trial(building(SLEEPING.format(path=str(pids))), timeout_s=2.0)
    assert (result.outcome, result.reason) == (Outcome.TIMED_OUT, "no result after 2 s (loading the model)")
    assert "--budget" in result.hint
    assert "loading" in result.hint
    assert re.search(r'target.py", line \d+ in build$', result.details)
    assert all(gone(int(pid)) for pid in appears(pids))


def test_a_loader_that_hangs_is_told_as_that(trial):
    hangs = SLOW.replace("torch.ones(64, 2), torch.ones(64, 2))", "torch.ones(64, 2), Hangs())")
    text = hangs.format(seconds=0, size=4) + "\n\nclass Hangs:\n    def size(self, _):\n        return 64\n\n"
    text += "    def __getitem__(self, index):\n        time.sleep(60)\n"
    result, _ = trial(text, timeout_s=2.0, kind=TrialKind.BASELINE)
    assert result.reason == "no result after 2 s (reading the first batches)"


SLOW = """
import time
import torch


def slow_loss(output, target):
    time.sleep({seconds})
    return (output - target).square().mean()


def build():
    data = torch.utils.data.TensorDataset(torch.ones(64, 2), torch.ones(64, 2))
    return torch.nn.Linear(2, 2), torch.utils.data.DataLoader(data, batch_size={size}), slow_loss
"""


def test_a_baseline_of_few_long_steps_is_measured(trial):
    result, _ = trial(SLOW.format(seconds=0.5, size=8), timeout_s=7.0, kind=TrialKind.BASELINE)
    assert result.measured
    assert result.blocks


@pytest.mark.parametrize(("size", "told"), [(8, "shorter steps with --batch-size 4."), (1, "more time with --budget.")])
def test_steps_that_the_time_does_not_hold_are_told_a_smaller_batch(trial, size, told):
    result, _ = trial(SLOW.format(seconds=60, size=size), timeout_s=3.0, kind=TrialKind.BASELINE)
    assert result.reason == "no result after 3 s (first steps)"
    assert told in result.hint


@pytest.mark.timed
def test_a_trial_is_cancelled_from_another_thread(trial, tmp_path):
    pids, runner, results = tmp_path / "pids", Runner(), []
    thread = threading.Thread(
        target=lambda: results.append(trial(building(SLEEPING.format(path=str(pids))), runner=runner))
    )
    thread.start()
    started = appears(pids)
    asked = time.monotonic()
    runner.cancel()
    thread.join(SOON_S)
    assert time.monotonic() - asked < 2.0
    result, _ = results[0]
    assert result.outcome is Outcome.CANCELLED
    assert all(gone(int(pid)) for pid in started)
    assert trial(TINY_TARGET, runner=runner)[0].outcome is Outcome.CANCELLED
    runner.resume()
    assert trial(TINY_TARGET, runner=runner)[0].outcome is Outcome.MEASURED


def test_resources_are_freed(trial):
    trial(TINY_TARGET)
    before = psutil.Process().num_fds()
    for _ in range(3):
        trial(building("os._exit(3)"))
    assert psutil.Process().num_fds() <= before + 1


GARBAGE = """
for descriptor in range(3, 1000):
    try:
        os.write(descriptor, b"\\xff\\xff\\xff\\xfbgarbage\\n" * 20)
    except OSError:
        pass
"""


def test_garbage_in_every_descriptor_ends_the_trial_alone(trial):
    result, _ = trial(building(GARBAGE))
    assert (result.outcome, result.reason) == (
        Outcome.CRASHED,
        "the target wrote to a file descriptor that is perf-advisor's",
    )
    assert trial(TINY_TARGET)[0].measured


@pytest.mark.parametrize(
    "body",
    [
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = None",
        "sys.stdout = type('Tee', (), {'write': lambda self, text: 1 / 0})()",
        "os.close(1); os.close(2)",
        "print('\\ud800 \\udcff')",
    ],
)
def test_a_target_may_do_as_it_likes_with_its_output(trial, body):
    result, _ = trial(building(body))
    assert result.measured, result.reason
