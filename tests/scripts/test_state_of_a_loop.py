"""The surroundings of a loop whose body runs by itself: names, contexts, files; and updates that are no step of it."""

import itertools
import os
from pathlib import Path

import pytest
import torch

from advisor.trial.timed_loop import set_mode
from advisor.workloads.scripts import files
from advisor.workloads.scripts.running import Script
from scripts.steps import batches, step_of


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


ENDS = """
    for epoch in range(9):
        for number, (x, y) in enumerate(loader):
            if number CONDITION 3:
                break
            STEP
            seen.append(number)
"""
# Scripts, the steps that are taken, and what all rounds note, that of the first among them.
SURROUNDINGS = {
    # The batch at which it ends is a step too.
    "a loop that ends by its count goes on in the next epoch": (ENDS.replace("CONDITION", "=="), 7, [0, 1, 2, 0, 1, 2]),
    "one that ends from a count on": (ENDS.replace("CONDITION", ">="), 7, [0, 1, 2, 0, 1, 2]),
    "a block around the loop is around each step": (
        """
        def steps():
            with torch.no_grad(), torch.enable_grad():
                for x, y in loader:
                    STEP
                    seen.append(torch.is_autocast_enabled("cpu"))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(2):
                steps()
        """,
        3,
        [True] * 4,
    ),
    # As of loops with a gradient scaler, which refuses a second `unscale_` before its `update`.
    "the round of the first update runs to its end": (
        """
        scaler = torch.amp.GradScaler("cpu")
        for step in range(1000):
            optimizer.zero_grad()
            for _ in range(4):
                loss = (model(torch.randn(8, 1)) ** 2).mean() / 4
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            seen.append(step)
        """,
        3,
        [0, 1, 2, 3],
    ),
    # An endless generator over a loader whose samples go through a module, as most of torchvision's do.
    "leaving a script ends none of its generators": (
        """
        from torch.utils.data import DataLoader, Dataset
        class Samples(Dataset):
            change = torch.nn.ReLU()
            def __len__(self): return 16
            def __getitem__(self, place): return self.change(torch.ones(1))
        def cycle(loader):
            while True:
                yield from loader
        made = cycle(DataLoader(Samples(), batch_size=8))
        for step in range(1000):
            for _ in range(2):
                (model(next(made)) ** 2).mean().backward()
            optimizer.step(); optimizer.zero_grad()
            seen.append(step)
        """,
        6,
        [0, 1, 2, 3],
    ),
    "a count begins anew where a class wraps the loader": (
        """
        from torch.utils.data import DataLoader
        class Wrapped:
            def __init__(self, loader): self.loader = loader
            def __iter__(self):
                for batch in self.loader:
                    yield batch / 2
        loader = Wrapped(DataLoader(torch.arange(24.0).view(24, 1), batch_size=8))
        for epoch in range(1000):
            for count, batch in enumerate(loader):
                optimizer.zero_grad(); (model(batch) ** 2).mean().backward(); optimizer.step()
                seen.append(count)
        """,
        9,
        [0, 1, 2] * 3 + [0],
    ),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_is_around_the_steps_of_a_loop_stays(name, script):
    text, steps, noted = SURROUNDINGS[name]
    loop, names = script(text)
    step, done = step_of(loop), 0
    while done < steps:
        for batch in itertools.islice(loop.data, steps - done):
            step(batch)
            done += 1
    assert names["seen"] == noted
    assert not torch.is_autocast_enabled("cpu")


class TestFiles:
    def test_rounds_leave_the_files_that_there_are(self, script):
        """Old checkpoints and logs are neither removed, moved nor written over."""
        pytest.importorskip("safetensors")
        pytest.importorskip("cv2")
        old = ("last.pt", "best.pt", "log.txt", "history.npy", "model.safetensors", "checkpoint-1/model.pt", "in_place")
        old += ("step.png", "traced.pt")
        Path("checkpoint-1").mkdir()
        for name in old:
            Path(name).write_text("precious")
            os.utime(name, (1, 1))
        loop, names = script("""
            import json, os, shutil
            from pathlib import Path
            import numpy as np
            import cv2, safetensors.torch
            from torchvision.io import write_png; from safetensors.torch import save_file
            from torch import save
            traced = torch.jit.trace(model, numbers)
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
                cv2.imwrite("step.png", np.zeros((4, 4, 3), np.uint8)), write_png(x.new_zeros(1, 4, 4).byte(), "x.png")
                torch.jit.save(traced, "traced.pt")
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


LOSS = "    loss = nn.functional.l1_loss(model(x), y)\n"
FITS = f"for x, y in loader:\n{LOSS}"
UPDATE = "    optimizer.zero_grad(); loss.backward(); optimizer.step()\n"
IN_PARTS = (
    "model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))\noptimizer = torch.optim.SGD(model.parameters(), 1e-4)\n"
)
CLIPPED = f"{IN_PARTS}{FITS}    optimizer.zero_grad(); loss.backward(BACKWARD)\n" + (
    "    nn.utils.clip_grad_norm_(CLIPPED.parameters(), 1.0)\n    optimizer.step()\n"
)
CLEARED = (
    "def clear():\n    optimizer.zero_grad()\ndef clear_all():\n    clear()\nrounds = iter(range(99))\n"
    f"{FITS}    loss.backward(); optimizer.step()\n    "
)
# Loops, and whether they are taken apart: only where a plain loop of their parts computes what they compute.
LOOPS = {
    "an update of nothing before it": (f"optimizer.zero_grad(); optimizer.step()\n{FITS}{UPDATE}", True),
    "an update before it": (
        f"model(torch.zeros(3, 1)).sum().backward(); optimizer.step(); optimizer.zero_grad()\n{FITS}{UPDATE}",
        True,
    ),
    "a batch that is changed": (FITS.replace("loss =", "z = x.mul(2.0); loss =") + UPDATE, True),
    "a batch that is changed in place": (FITS.replace("loss =", "x.mul_(2.0); loss =") + UPDATE, False),
    "clipping": (CLIPPED.replace("BACKWARD", "").replace("CLIPPED", "model"), True),
    "options of a backward pass": (CLIPPED.replace("BACKWARD", "create_graph=True").replace("CLIPPED", "model"), False),
    "clipping of a part": (CLIPPED.replace("BACKWARD", "").replace("CLIPPED", "model[0]"), False),
    "gradients that are cleared": (f"{CLEARED}optimizer.zero_grad()", True),
    "cleared by a function": (f"{CLEARED}clear()", True),
    "cleared by a function of a function": (f"{CLEARED}clear_all()", True),
    "set to None": (f"{CLEARED}for p in model.parameters(): p.grad = None", True),
    "set to zero": (f"{CLEARED}model.bias.grad.zero_(); model.weight.grad.zero_()", True),
    "cleared before the loop, so that they add up": (f"optimizer.zero_grad()\n{CLEARED}pass", False),
    "cleared in some rounds": (f"{CLEARED}if next(rounds) % 2 == 0: optimizer.zero_grad()", False),
    "no loader": (f"for epoch in range(100):\n    x = y = torch.randn(64, 1)\n{LOSS}{UPDATE}", True),
}


class TestWhatIsAPlainLoop:
    @pytest.mark.parametrize("name", LOOPS)
    def test_a_loop_is_taken_apart_where_its_parts_compute_the_same(self, name, script):
        text, plain = LOOPS[name]
        loop, _ = script(text)
        assert (loop.step is None) is plain
        assert loop.clip_grad == (1.0 if name == "clipping" else None)
        if name == "no loader":
            assert len(next(iter(loop.data))[-1]) == 64
        else:
            assert loop.loader.batch_size == 8

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
    assert len(batches(loop, 2)) == 2  # a worker of another kind could not be given the lambda


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


def test_workers_are_forked_and_import_no_script(script):
    options = "num_workers=1, multiprocessing_context='spawn', collate_fn=lambda rows: (torch.stack(rows),) * 2"
    loop, _ = script(f"for x, y in DataLoader(numbers, 8, {options}):\n    STEP\n")
    assert len(batches(loop, 2)) == 2  # a worker of another kind could not be given the lambda
