"""The surroundings of a loop whose body runs by itself: names, contexts, files; and updates that are no step of it."""

import os
from pathlib import Path

import pytest
import torch

from advisor.trial.timed_loop import set_mode
from advisor.workloads.scripts import files
from advisor.workloads.scripts.draft import draft_of
from advisor.workloads.scripts.running import Script
from scripts.steps import HEAD, STEP, batches


def test_a_thread_that_writes_logs_is_not_started_and_nobody_waits_for_it(script):
    loop, names = script("""
        import queue, threading
        class Writing(threading.Thread):
            def __init__(self):
                super().__init__(daemon=True)
                self._queue = queue.Queue(2)
            def run(self):
                while True:
                    self._queue.get()
        Writing.__module__ = "tensorboard.summary.writer.event_file_writer"
        writer = Writing()
        writer.start()
        for x, y in loader:
            STEP
            writer._queue.put(1)
    """)
    batches(loop, 5)
    assert not names["writer"].is_alive()


@pytest.mark.parametrize("condition", ["number == 3", "number >= 3"])
def test_a_loop_that_ends_by_its_count_goes_on_in_the_next_epoch(script, condition):
    loop, names = script(f"""
for epoch in range(9):
    for number, (x, y) in enumerate(loader):
        if {condition}:
            break
        STEP
        seen.append(number)
""")
    batches(loop, 7)
    assert names["seen"] == [0, 1, 2, 0, 1, 2], "the batch at which it ends is a step too"


def test_a_block_around_the_loop_is_around_each_step(script):
    loop, names = script("""
        def steps():
            with torch.no_grad(), torch.enable_grad():
                for x, y in loader:
                    STEP
                    seen.append(torch.is_autocast_enabled("cpu"))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(2):
                steps()
    """)
    batches(loop, 3)
    assert names["seen"] == [True] * 4
    assert not torch.is_autocast_enabled("cpu")


def test_a_schedule_of_so_many_steps_begins_anew(script):
    """As of OneCycleLR, which refuses more steps than it was made for."""
    loop, names = script("""
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-4, total_steps=len(loader))
        for x, y in loader:
            STEP
            schedule.step()
            seen.append(schedule.last_epoch)
    """)
    batches(loop, 8)
    assert names["seen"] == [1, 2, 3, 4, 5, 6, 7, 0, 1]


class TestFiles:
    def test_rounds_leave_the_files_that_there_are(self, script):
        """Old checkpoints and logs are neither removed, moved nor written over."""
        pytest.importorskip("safetensors")
        old = ("last.pt", "best.pt", "log.txt", "history.npy", "model.safetensors", "checkpoint-1/model.pt", "in_place")
        Path("checkpoint-1").mkdir()
        for name in old:
            Path(name).write_text("precious")
            os.utime(name, (1, 1))
        loop, names = script("""
            import json, os, shutil
            from pathlib import Path
            import numpy as np
            import safetensors.torch
            from safetensors.torch import save_file
            from torch import save
            for number, (x, y) in enumerate(loader):
                STEP
                for folder in Path().glob("checkpoint-*"):
                    shutil.rmtree(folder)
                os.makedirs(f"checkpoint-{number}", exist_ok=True)
                save(model.state_dict(), f"checkpoint-{number}/model.pt")
                torch.save(model.state_dict(), "last.tmp")
                os.replace("last.tmp", "last.pt")
                shutil.copy("last.pt", "best.pt")
                shutil.copy2("last.pt", f"new-{number}.pt"), os.remove("best.pt")
                with open("log.txt", "a") as file:
                    file.write(str(number))
                with open("in_place", "r+") as file:
                    seen.append(file.read(3)), file.seek(0), file.write(f"{number:03}")
                np.save("history.npy", np.zeros(number))
                save_file(model.state_dict(), "model.safetensors")
                Path("history.json").write_text(json.dumps(number))
        """)
        batches(loop, 2)
        assert {Path(name).read_text() for name in old} == {"precious"}
        assert names["seen"] == ["pre", "000", "001"]
        assert {str(one) for one in Path().rglob("*") if one.is_file()} == {*old, "train.py"}

    def test_what_a_script_writes_before_its_loop_leaves_the_files_that_there_are(self, script):
        old = ("best.pt", "args.json", "log.txt", "out/1.png", "runs/model.pt")
        for name in old:
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text("precious")
            os.utime(name, (1, 1))
        loop, names = script("""
            import json, os, shutil
            torch.save(model.state_dict(), "best.pt")
            model.load_state_dict(torch.load("best.pt"))
            with open("args.json", "w") as file:
                json.dump({"lr": 1}, file)
            seen.append(json.load(open("args.json"))["lr"])
            if os.path.exists("out"):
                shutil.rmtree("out")
            os.makedirs("out")
            os.rename("runs", "runs.old")
            os.makedirs("runs")
            log = open("log.txt", "a")
            for x, y in loader:
                STEP
                print("one", file=log, flush=True)
        """)
        batches(loop, 2)
        assert names["seen"] == [1]
        assert {Path(name).read_text() for name in old} == {"precious"}

    def test_rounds_find_what_they_made_and_the_folder_does_not_get_it(self, script):
        loop, names = script("""
            import os, shutil, zipfile
            from pathlib import Path
            os.makedirs("runs")
            with open("runs/start.txt", "w") as file:
                file.write("begun ")
            best = None
            for number, (x, y) in enumerate(loader):
                STEP
                if number:
                    assert os.path.exists("runs/last.pt") and torch.load("runs/last.pt")["number"] == number - 1
                    os.remove(best)
                    assert not os.path.exists(best)
                torch.save({"number": number}, "runs/last.tmp")
                os.replace("runs/last.tmp", "runs/last.pt")
                best = shutil.copy2("runs/last.pt", f"runs/best-{number}.pt")
                with zipfile.ZipFile("runs/all.zip", "w") as file:
                    file.write(best)
                with open("runs/log.txt", "a") as file:
                    file.write(f"{number} ")
                with open("runs/start.txt", "a") as file:
                    file.write(f"{number} ")
                seen.append(Path("runs/start.txt").read_text() + Path("runs/log.txt").read_text())
        """)
        batches(loop, 2)
        assert names["seen"] == ["begun 0 0 ", "begun 0 1 0 1 ", "begun 0 1 2 0 1 2 "]
        assert [one.name for one in Path("runs").iterdir()] == ["start.txt"]

    def test_what_stands_behind_the_loop_is_not_run(self, script):
        loop, _ = script("""
            try:
                for x, y in loader:
                    STEP
            finally:
                open("final.txt", "w").write("over")
        """)
        batches(loop, 2)
        assert not Path("final.txt").exists()


class TestWhatIsNoStepOfTheLoop:
    @pytest.mark.parametrize(
        "before",
        [
            "optimizer.zero_grad(); optimizer.step()",
            "model(torch.zeros(3, 1)).sum().backward(); optimizer.step(); optimizer.zero_grad()",
        ],
    )
    def test_an_update_before_it(self, script, before):
        loop, _ = script(f"""
{before}
for x, y in loader:
    loss = nn.functional.l1_loss(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""")
        assert loop.step is None
        assert loop.loader.batch_size == 8

    @pytest.mark.parametrize(("before", "plain"), [("z = x.mul(2.0)", True), ("x.mul_(2.0)", False)])
    def test_a_loop_that_writes_into_its_batch_is_left_whole(self, before, plain, script):
        loop, _ = script(f"""
            for x, y in loader:
                {before}
                loss = nn.functional.l1_loss(model(x), y)
                optimizer.zero_grad(); loss.backward(); optimizer.step()
        """)
        assert (loop.step is None) is plain


class TestWhatIsNoPlainLoop:
    """A loop is taken apart only where its parts, called as a plain loop calls them, compute what it computed."""

    @pytest.mark.parametrize(
        ("backward", "clipped", "plain"),
        [("", "model", True), ("create_graph=True", "model", False), ("", "model[0]", False)],
    )
    def test_options_of_a_backward_pass_and_clipping_of_a_part(self, backward, clipped, plain, script):
        loop, _ = script(f"""
            model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
            for x, y in loader:
                loss = (model(x) - y).abs().mean()
                optimizer.zero_grad(); loss.backward({backward})
                nn.utils.clip_grad_norm_({clipped}.parameters(), 1.0)
                optimizer.step()
        """)
        assert (loop.step is None) is plain
        assert loop.clip_norm == (1.0 if plain else None)

    @pytest.mark.parametrize(
        ("before", "in_loop", "plain"),
        [
            ("pass", "optimizer.zero_grad()", True),
            ("pass", "clear()", True),
            ("pass", "clear_all()", True),
            ("pass", "for p in model.parameters(): p.grad = None", True),
            ("pass", "model.bias.grad.zero_(); model.weight.grad.zero_()", True),
            ("optimizer.zero_grad()", "pass", False),
            ("rounds = iter(range(99))", "if next(rounds) % 2 == 0: optimizer.zero_grad()", False),
        ],
    )
    def test_gradients_that_add_up_over_the_rounds(self, script, before, in_loop, plain):
        loop, _ = script(f"""
            def clear():
                optimizer.zero_grad()
            def clear_all():
                clear()
            {before}
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward(); optimizer.step()
                {in_loop}
        """)
        assert (loop.step is None) is plain

    def test_a_model_that_trains_in_evaluation_mode_stays_in_it(self, script):
        loop, _ = script("""
            model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)).eval()
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad(); loss.backward(); optimizer.step()
        """)
        set_mode(loop)
        assert loop.step is not None
        assert not any(part.training for part in loop.model.modules())

    @pytest.mark.parametrize("inputs", ["numbers", "torch.randn(64, 1)"])
    def test_a_loop_without_a_loader_is_plain_on_the_batch_that_it_always_uses_or_makes(self, script, inputs):
        loop, _ = script(f"""
            criterion = nn.MSELoss()
            for epoch in range(100):
                x = {inputs}
                loss = criterion(model(x), numbers)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """)
        assert loop.step is None
        assert len(next(iter(loop.data))[-1]) == 64


def test_a_script_of_a_package_finds_what_is_beside_it(script, tmp_path):
    """``python -m package.inner.train``, by its path."""
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for folder in ("package", "package/inner"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "package" / "sizes.py").write_text("SIZE = 8\n")
    loop, names = script(
        """
        from ..sizes import SIZE
        for x, y in DataLoader(loader.dataset, SIZE):
            STEP
        """,
        name="package/inner/train.py",
    )
    assert names["__package__"] == "package.inner"
    assert len(batches(loop, 2)) == 2


def test_a_draft_takes_the_class_from_the_script_of_a_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("package").mkdir()
    Path("package/__init__.py").touch()
    Path("package/sizes.py").write_text("SIZE = 8\n")
    Path("package/train.py").write_text(
        f"{HEAD}from .sizes import SIZE\n\nclass Net(nn.Linear):\n    pass\n\nif __name__ == '__main__':\n"
        "    net = Net(1, 1)\n    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        f"    for x, y in loader:\n        {STEP.replace('model', 'net')}\n"
    )
    monkeypatch.setattr("sys.argv", ["package/train.py"])
    text, _ = draft_of("package/train.py", "build_it.py")
    assert "from package.train import Net" in text


def test_the_inference_mode_of_a_paused_script_is_its_own():
    seen = []

    def run():
        with torch.inference_mode():
            for _ in range(3):
                seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
                script.pause()

    script = Script(run)
    while script.go_on():
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()
        (2 * torch.ones(1, requires_grad=True)).backward()
    assert seen == [(True, False)] * 3
    assert not torch.is_inference_mode_enabled()


def test_a_file_too_large_to_copy_is_opened_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST_COPIED", 3)
    (tmp_path / "train.bin").write_bytes(b"many tokens")
    with files._open_aside(open, tmp_path / "train.bin", "r+b") as file:
        assert file.read() == b"many tokens"
    assert tmp_path / "train.bin" not in files._written
