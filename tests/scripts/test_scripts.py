"""Scripts as they are: each is run up to its loop, observed, and made into a loop that steps."""

import io
import math
import multiprocessing
import os
import socket
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from advisor.errors import TargetError
from advisor.experiment.scaling.gpus import is_for_ranks
from advisor.recipe.catalog import load_catalog
from advisor.recipe.plan import StepPlan
from advisor.records import Mode, TargetSpec
from advisor.step.tuning import apply_settings
from advisor.trial.measurement.draws import Feed
from advisor.workloads.entrypoint import load_target
from advisor.workloads.scripts.files import remove_made_folders, writing_aside
from scripts.steps import batches, step_of

HERE = Path(__file__).parent
PLAIN, OWN = "its parts", "its body"
ARGUMENTS = {"public/mnist": ("--epochs", "1000")}
SCRIPTS = {
    "public/mnist": (PLAIN, "Net", "Adam"),
    "public/gpt": (OWN, "GPT", "AdamW"),
    "public/dcgan": (OWN, "Sequential + Sequential", "Adam + Adam"),
    "public/scaled": (OWN, "Sequential", "AdamW"),
    "trainer_class": (PLAIN, "Linear", "RMSprop"),
}
WITH_LIBRARIES = {
    "lightning_fit": (PLAIN, "Regression", "Adam"),
    "hf_trainer": (PLAIN, "BertForSequenceClassification", "AdamW"),
    "accelerate_loop": (PLAIN, "GPT2LMHeadModel", "AdamW"),
}
WHOLE = {**SCRIPTS, **WITH_LIBRARIES}
NEEDED = {
    "lightning_fit": ["lightning"],
    "hf_trainer": ["accelerate", "transformers"],
    "accelerate_loop": ["accelerate", "transformers"],
}


def loaded(name):
    for library in NEEDED.get(name, ()):
        pytest.importorskip(library)
    return load_target(TargetSpec(f"{name}.py", str(HERE), device="cpu", arguments=ARGUMENTS.get(name, ())))


def check(name, kind, models, optimizers):
    loop = loaded(name)
    parts = [*loop.model] if isinstance(loop.model, torch.nn.ModuleList) else [loop.model]
    assert " + ".join(type(part).__name__ for part in parts) == models
    assert (loop.step is not None) is (kind == OWN)
    assert loop.mode is Mode.TRAIN
    owners = getattr(loop.optimizer, "optimizers", [] if loop.optimizer is None else [loop.optimizer])
    assert " + ".join(type(one).__name__.removeprefix("Accelerated") for one in owners) == optimizers
    feed, step = Feed(loop.data, 0), step_of(loop)
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    assert all(math.isfinite(float(step(feed.next()))) for _ in range(8))
    assert not all(map(torch.equal, before, loop.model.parameters()))
    return loop


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_measured_without_an_edit(name):
    check(name, *SCRIPTS[name])


def test_the_example_of_the_readme_is_measured_by_its_parts():
    arguments = ("--epochs", "1", "--width", "4")
    loop = load_target(TargetSpec("examples/train.py", str(HERE.parents[1]), device="cpu", arguments=arguments))
    assert loop.step is None
    assert loop.model[0].out_channels == 4
    assert (type(loop.data), type(loop.optimizer)) == (DataLoader, torch.optim.AdamW)
    feed, step = Feed(loop.data, 0), step_of(loop)
    assert all(math.isfinite(float(step(feed.next()))) for _ in range(3))


@pytest.mark.process
@pytest.mark.parametrize("name", WITH_LIBRARIES)
def test_a_script_that_leaves_the_loop_to_a_library(name):
    loop = check(name, *WITH_LIBRARIES[name])
    assert loop.clip_grad == {"lightning_fit": 0.5, "hf_trainer": 1.0}.get(name)
    assert loop.trainer == {"lightning_fit": "lightning", "hf_trainer": "transformers"}.get(name, "")


def read_under_one_seed(loader):
    torch.manual_seed(0)
    return [batch["input_ids"] for batch in loader]


@pytest.mark.process
def test_accelerates_loader_feeds_the_body_with_other_workers_too():
    loop = loaded("accelerate_loop")
    assert type(loop.data).__name__ == "DataLoaderShard", "as the script has it, and not the loader within it"
    components = loop.components(StepPlan(mode=loop.mode, device="cpu"), loop.data)
    apply_settings(load_catalog(), components, {"data.num_workers": 1})
    assert components.data.num_workers == 1
    before, after = map(read_under_one_seed, (loop.data, components.data))
    assert len(before) == len(after) == 4
    assert all(map(torch.equal, before, after))
    step, feed = step_of(loop, {"data.num_workers": 1}), Feed(components.data, 0)
    assert all(math.isfinite(float(step(feed.next()))) for _ in range(6))


class TestWhatIsSeen:
    def test_workers_stay_the_scripts(self, script):
        loop, _ = script("loader = DataLoader(loader.dataset, 8, num_workers=2)\nfor x, y in loader:\n    STEP\n")
        assert loop.loader.num_workers == 2

    def test_autocast_and_clipping_are_settings_of_the_loop(self, script):
        loop, _ = script("""
            scaler = torch.amp.GradScaler("cpu", enabled=False)
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
                scaler.step(optimizer)
                scaler.update()
        """)
        assert (loop.step, loop.current["precision.autocast"], loop.clip_grad) == (None, "bfloat16", 1.0)
        assert len(batches(loop, 2)) == 2

    def test_settings_reach_the_scripts_own_objects(self):
        loop = loaded("public/dcgan")
        feed, step = Feed(loop.data, 0), step_of(loop, {"optimizer.implementation": "fused"})
        step(feed.next())
        assert all(group["fused"] for group in loop.optimizer.param_groups)

    def test_an_only_rank_takes_a_port_that_is_free(self, script, monkeypatch):
        with socket.create_server(("localhost", 0)) as taken:
            only = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": taken.getsockname()[1]}
            for name, value in {**only, "MASTER_ADDR": "localhost"}.items():
                monkeypatch.setenv(name, str(value))
            try:
                loop, _ = script(
                    "torch.distributed.init_process_group('gloo')\n"
                    "model = nn.parallel.DistributedDataParallel(model)\nfor x, y in loader:\n    STEP\n"
                )
            finally:
                torch.distributed.destroy_process_group()
        assert type(loop.model).__name__ == "DistributedDataParallel"

    @pytest.mark.parametrize(
        ("text", "is_for_them"),
        [
            ("import os\nrank = int(os.environ['LOCAL_RANK'])\n", True),
            ("from torch.distributed import init_process_group\n", True),
            ("from parts.ranks import begin\nbegin()\n", True),
            ("from parts import ranks\n", True),
            ('"""Sets WORLD_SIZE nowhere."""\nimport os, parts.missing, torch\nos.environ["RANKS"]\n', False),
            ("RANK = 8\nmodel.LOCAL_RANK = RANK\n", False),
            ("rank = (\n", False),
        ],
    )
    def test_one_for_torchrun_is_told_by_its_own_source(self, text, is_for_them, tmp_path):
        (tmp_path / "parts").mkdir()
        (tmp_path / "parts" / "ranks.py").write_text("import torch, train\ntorch.distributed.init_process_group()\n")
        (tmp_path / "train.py").write_text(text)
        assert is_for_ranks("train.py", str(tmp_path)) is is_for_them


def test_an_update_that_is_all_of_a_training_is_measured_by_its_iterations(script):
    """Physics-informed networks are often trained so: one `step` of LBFGS with tens of thousands of iterations."""
    loop, names = script("""
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=50_000, line_search_fn="strong_wolfe")
        def closure():
            optimizer.zero_grad()
            loss = (model(numbers) ** 2).mean()
            loss.backward()
            seen.append(float(loss))
            return loss
        optimizer.step(closure)
    """)
    assert names["seen"] == []
    batches(loop, 4)
    assert len(names["seen"]) == 4
    assert names["seen"][-1] < names["seen"][0]


def test_a_script_may_ask_its_terminal_for_the_size(script):
    """A popular progress bar does so when it is imported."""
    _, names = script("""
        import os
        _, width = os.popen("stty size", "r").read().split()
        for x, y in loader:
            optimizer.zero_grad(); (model(x) - y).abs().mean().backward(); optimizer.step()
    """)
    assert int(names["width"]) > 0


class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "said", "hint"),
        [
            ("no_loop", "ended without a training loop", "arguments that make it train, after --"),
            ("spawns", "processes of its own", "one process"),
            ("forks", "processes of its own", "one process"),
            ("spawns_ranks", "processes of its own", "one process"),
            ("needs_arguments", "required: --data", "after --"),
            ("at_import", "trains while it is imported", "__main__"),
        ],
    )
    def test_says_what_is_missing_and_what_to_type(self, name, said, hint, bad):
        with pytest.raises(TargetError) as error:
            load_target(TargetSpec(str(bad(name)), ".", device="cpu"))
        assert said in f"{error.value.message} {error.value.details}"
        assert hint in error.value.hint

    @pytest.mark.parametrize(
        ("text", "said", "hint"),
        [
            ("import sys\nsys.exit(3)\n", "sys.exit(3)", "Remove the exit"),
            ("import os\nos.environ['LOCAL_RANK']\n", "'LOCAL_RANK'", "`export RANK=0 LOCAL_RANK=0"),
            ("import torch\ntorch.distributed.init_process_group('gloo')\n", "not set", "--gpus N"),
            ("input('go on? ')\n", "EOF when reading a line", "lines below"),
            ("import urllib.request\nurllib.request.urlopen('http://nobody.invalid')\n", "URLError", "the network"),
        ],
    )
    def test_a_script_that_ends_itself_or_asks_is_told_what_to_do(self, text, said, hint, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        (tmp_path / "train.py").write_text(text)
        with pytest.raises(TargetError) as error:
            load_target(TargetSpec("train.py", str(tmp_path), device="cpu"))
        assert said in error.value.message
        assert hint in error.value.hint

    @pytest.mark.process
    def test_a_process_that_trains_in_an_interpreter_of_its_own_is_noticed_at_its_first_update(self, bad):
        before = set(multiprocessing.active_children())
        with pytest.raises(TargetError, match="trains in processes of its own"):
            load_target(TargetSpec(str(bad("pool_of_processes")), ".", device="cpu"))
        assert set(multiprocessing.active_children()) <= before

    @pytest.mark.process
    def test_a_loop_that_ends_says_so_also_in_a_forked_trial(self, script):
        loop, _ = script("count = 0\nwhile count < 3:\n    x, y = numbers, numbers\n    STEP\n    count += 1\n")
        if not (pid := os.fork()):
            try:
                batches(loop, 9)
            except TargetError as error:
                os._exit(7 if "has come to its end" in error.message else 8)
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        with pytest.raises(TargetError, match="has come to its end"):
            batches(loop, 9)


def test_folders_that_a_script_makes_when_it_is_run_again_are_removed(tmp_path):
    (tmp_path / "old").mkdir()
    with writing_aside(new_ones_too=False):
        (tmp_path / "old" / "runs" / "1").mkdir(parents=True)
        (tmp_path / "old" / "runs" / "1" / "training.log").write_text("of the script")
    remove_made_folders()
    assert [*tmp_path.rglob("*")] == [tmp_path / "old"]
