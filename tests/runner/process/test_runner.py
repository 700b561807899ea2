import os
import subprocess
import sys
import textwrap
import time
from statistics import median

import pytest
from planted import TINY_TARGET
from trial_processes import SLEEPING, SOON_S, appears, building, gone, spec_of

from advisor.records import Activity, Block, Inspected, Outcome, Profile, Ready, TrialKind, TrialResult
from advisor.runner.trials import Runner

pytestmark = pytest.mark.usefixtures("warm_fork_server")


def test_a_trial_measures_and_tells_what_it_does(trial):
    result, messages = trial(TINY_TARGET, kind=TrialKind.PROFILE)
    assert result.outcome is Outcome.MEASURED
    assert result.measured
    assert result.blocks
    assert all(block.samples == 8 * block.steps for block in result.blocks)
    assert len(result.losses) == 5
    assert result.batch_size == 8
    assert result.peak_reserved_bytes > 2**20
    assert min(result.build_s, result.prepare_s, result.warmup_s) >= 0
    assert result.wall_s > result.warmup_s
    assert isinstance(messages[-1], TrialResult)
    activities = [message.text for message in messages if isinstance(message, Activity)]
    assert activities == [
        "loading the model", "applying the settings", "reading the first batches", "first steps", "warming up",
        "measuring", "profiling",
    ]  # fmt: skip
    told = [message for message in messages if isinstance(message, Block)]
    assert result.blocks[0].steps % told[0].steps == 0, "short blocks are joined in the result"
    assert len(told) <= 2 + 4 * sum(block.seconds for block in result.blocks)
    profile = next(message for message in messages if isinstance(message, Profile))
    assert {"forward", "backward", "optimizer"} <= set(profile.phases)
    assert not any(isinstance(message, Inspected) for message in messages), "the first baseline has looked"


def test_a_schedule_made_for_fewer_steps_than_a_trial_makes_stays_at_its_last_rate(trial):
    result, _ = trial("""
        import torch
        import advisor

        def build():
            model = torch.nn.Linear(4, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4)

            def step(batch):
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                return loss

            return advisor.Workload(step=step, models=[model], optimizers=[optimizer], data=torch.ones(8, 4))
    """)
    assert result.outcome is Outcome.MEASURED, result.reason
    assert sum(block.steps for block in result.blocks) > 4


OPEN_LOSS = TINY_TARGET.replace("nn.CrossEntropyLoss()", "lambda a, b: nn.functional.cross_entropy(a(b[0]), b[1])")


def test_a_loss_whose_signature_says_nothing_is_tried_and_the_form_is_told(trial):
    plain, _ = trial(TINY_TARGET)
    result, messages = trial(OPEN_LOSS, kind=TrialKind.BASELINE)
    assert result.losses == plain.losses
    inspected = next(message for message in messages if isinstance(message, Inspected))
    assert inspected.workload.optimizer.name == "SGD"
    for notes in (result.notes, inspected.workload.notes):
        assert [note for note in notes if "the loss is called as loss(model, batch)" in note]
    assert not [note for note in plain.notes if "the loss is called" in note]
    assert (plain.loss_form, result.loss_form) == ("output_target", "model_batch")


MISSING = "/nowhere/libmissing.so"


def test_an_environment_gets_a_fresh_interpreter_that_is_the_same_process(trial, tmp_path, capfd):
    body = """
    with open('seen.txt', 'w') as seen:
        seen.write(f"{os.environ['PLANTED']} {os.environ.get('LD_PRELOAD')} {os.getpid()} {os.getpgid(0)}")
    print("from the fresh interpreter", file=sys.stderr)
    """
    text = building(body).replace("'seen.txt'", repr(str(tmp_path / "seen.txt")))
    result, messages = trial(text, environment={"PLANTED": "a value", "LD_PRELOAD": MISSING})
    assert result.outcome is Outcome.MEASURED
    value, again, preload, pid, group = (tmp_path / "seen.txt").read_text().split()
    assert (f"{value} {again}", preload) == ("a value", MISSING)
    assert pid == group != str(os.getpid())
    assert isinstance(messages[0], Activity)
    log = (tmp_path / "logs" / "trial.log").read_text()
    assert "from the fresh interpreter" in log
    assert MISSING in log, "a library that cannot be preloaded is named"
    assert "fresh interpreter" not in capfd.readouterr().err
    assert gone(int(pid))


def test_experiment_trackers_record_no_run_of_a_trial(trial):
    target = TINY_TARGET.replace(
        "def build():\n",
        "def build():\n    import os\n    assert os.environ['WANDB_MODE'] == os.environ['SWANLAB_MODE'] == 'disabled'\n"
        "    assert not os.environ['MLFLOW_TRACKING_URI'].startswith(f'file:{os.getcwd()}')\n",
    )
    result, _ = trial(target)
    assert result.outcome is Outcome.MEASURED, result.details


def test_output_of_the_target_lands_in_the_log(trial, tmp_path, capfd):
    trial(
        building(
            """
            print("from print")
            print("from stderr", file=sys.stderr)
            os.write(1, b"from the descriptor\\n")
            subprocess.run(["echo", "from a child"])
            assert sys.stdin.read() == ""
            """
        )
    )
    log = (tmp_path / "logs" / "trial.log").read_text()
    for text in ("from print", "from stderr", "from the descriptor", "from a child"):
        assert text in log
    captured = capfd.readouterr()
    assert "from" not in captured.out + captured.err


def test_an_interactive_trial_waits_for_each_block(tmp_path):
    (tmp_path / "target.py").write_text(TINY_TARGET, encoding="utf-8")
    messages = []
    with Runner().open(spec_of(tmp_path, "target.py", kind=TrialKind.TURNS), messages.append) as live:
        assert live.wait_ready() is None
        assert isinstance(messages[-1], Ready)
        blocks = [live.measure_block(0.02) for _ in range(2)]
        result = live.finish()
    assert all(isinstance(block, Block) for block in blocks)
    assert result.blocks == tuple(blocks)


def test_a_turn_does_not_begin_with_what_workers_did_while_another_had_its_turn(tmp_path):
    (tmp_path / "target.py").write_text(
        textwrap.dedent(
            """
            import time
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, Dataset

            class Slow(Dataset):
                def __len__(self): return 1000
                def __getitem__(self, index):
                    time.sleep(0.1)
                    return torch.ones(4, 3), torch.zeros(4, dtype=torch.long)

            def build():
                return nn.Linear(3, 2), DataLoader(Slow(), batch_size=None, num_workers=1)
            """
        ),
        encoding="utf-8",
    )
    with Runner().open(spec_of(tmp_path, "target.py", kind=TrialKind.TURNS), lambda message: None) as live:
        assert live.wait_ready() is None
        blocks = []
        for _ in range(3):
            time.sleep(0.5)  # the worker fills its queue of two batches
            blocks.append(live.measure_block(0.2))
        live.finish()
    assert median(block.step_ms for block in blocks) > 60


def test_loader_workers_die_with_their_trial(trial, tmp_path):
    text = """
        import os
        import torch
        from torch import nn
        from torch.utils.data import DataLoader, Dataset

        class Data(Dataset):
            def __len__(self): return 10**6
            def __getitem__(self, index):
                open(f"FOLDER/worker-{os.getpid()}", "w").close()
                return torch.ones(3), 1

        def build():
            return nn.Linear(3, 2), DataLoader(Data(), batch_size=2, num_workers=1)
    """
    assert trial(text.replace("FOLDER", str(tmp_path)))[0].outcome is Outcome.MEASURED
    workers = [int(path.name.partition("-")[2]) for path in tmp_path.glob("worker-*")]
    assert workers
    assert all(gone(pid) for pid in workers)


def test_workers_start_as_in_the_users_own_program(trial, tmp_path):
    """No method has been chosen: a program may choose one, and a forked worker takes what cannot be pickled."""
    text = """
    import multiprocessing
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, default_collate

    def build():
        open({path!r}, "w").write(str(multiprocessing.get_start_method(allow_none=True)))
        multiprocessing.set_start_method("fork")
        data = [(torch.ones(3), 1)] * 8
        return nn.Linear(3, 2), DataLoader(data, batch_size=2, num_workers=1, collate_fn=lambda s: default_collate(s))
    """
    result, _ = trial(textwrap.dedent(text).format(path=str(tmp_path / "method")))
    assert (result.outcome, result.reason) == (Outcome.MEASURED, "")
    assert (tmp_path / "method").read_text() == "None"


PARENT = """
import signal
import sys
from advisor.records import TargetSpec, TrialSpec
from advisor.runner.fork_server import CONTEXT
from advisor.runner.trials import Runner

def run(name):
    folder = sys.argv[1]
    target = TargetSpec(f"{name}.py", folder, device="cpu")
    return Runner().run(TrialSpec("t", target, {}, 0.1, 0.2, 300.0, f"{folder}/{name}.log"), lambda message: None)

if __name__ == "__main__":
    Runner.prepare()
    child = CONTEXT.Process(target=signal.raise_signal, args=(signal.SIGINT,))
    child.start()
    child.join()
    print(child.exitcode)
    print(run("tiny").outcome, *(name in sys.modules for name in ("torch", "textual")), flush=True)
    run("sleeps")
"""


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A program with a fork server of its own, killed in its last trial: what it printed, and that trial's processes.

    A terminal's Ctrl+C reaches what it has just forked, then it runs a trial, and then one that never ends.
    """
    folder = tmp_path_factory.mktemp("parent")
    (folder / "tiny.py").write_text(TINY_TARGET, encoding="utf-8")
    (folder / "sleeps.py").write_text(building(SLEEPING.format(path=str(folder / "pids"))), encoding="utf-8")
    (folder / "parent.py").write_text(PARENT, encoding="utf-8")
    command = [sys.executable, str(folder / "parent.py"), str(folder)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        pids = appears(folder / "pids")
    finally:
        started.kill()
        printed, errors = started.communicate(timeout=SOON_S)
    return printed.splitlines(), errors, [int(pid) for pid in pids]


def test_the_death_of_the_parent_ends_the_trial(parent):
    *_, pids = parent
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_whole_trial_leaves_torch_out_of_the_parent(parent):
    assert parent[0][1].split() == ["measured", "False", "False"]


def test_an_interruption_means_nothing_to_a_process_that_is_about_to_become_a_trial(parent):
    """A terminal's Ctrl+C goes to all of its group, also to what the fork server has just forked."""
    printed, errors, _ = parent
    assert (printed[0], errors) == ("0", "")


@pytest.mark.timed
def test_a_cancellation_does_not_wait_for_a_cold_fork_server(tmp_path):
    """The first trial waits for the fork server to import torch; leaving the app in that moment must not."""
    (tmp_path / "target.py").write_text(TINY_TARGET, encoding="utf-8")
    script = textwrap.dedent(
        f"""
        import os, threading, time
        from advisor.records import TargetSpec, TrialSpec
        from advisor.runner.trials import Runner

        Runner.prepare()
        runner = Runner()
        threading.Timer(0.3, runner.cancel).start()
        target = TargetSpec("target.py", {str(tmp_path)!r})
        spec = TrialSpec("cold", target, {{}}, 1.0, 1.0, 60.0, {str(tmp_path / "log")!r})
        started = time.monotonic()
        result = runner.run(spec, lambda message: None)
        print(result.outcome.value, time.monotonic() - started)
        """
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    outcome, seconds = ended.stdout.split()
    assert outcome == "cancelled"
    assert float(seconds) < 1.5
