"""Targets that fail, hang or do odd things, beside those of ``tests/runner/process``."""

from pathlib import Path

from planted import TINY_TARGET
from trial_processes import building as in_build

from faults.register import SOON_S, command, ends_its_trial, fault, measured, run, trial


def in_step(body: str) -> str:
    return TINY_TARGET.replace("        return 1.0 * x", "".join(f"        {line}\n" for line in body.split("\n")))


FIX, MORE_TIME = "Fix the lines below", "Give it more time with --budget"
UNSHOWN = "class E(Exception):\n    def __str__(self): raise ValueError('x')\nraise E"
DEAF = "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)"
# The text of a target, and what the two lines say.
FAILING = {
    "an exception with surrogates": (in_build("raise RuntimeError('\\udcff')"), "RuntimeError: \\udcff", FIX),
    "an exception that cannot be shown": (in_build(UNSHOWN), "build in target.py failed: E", FIX),
    "endless recursion": (in_build("def f(): return f()\nf()"), "RecursionError", FIX),
    "an abort": (in_build("import os; os.abort()"), "ended by SIGABRT", "leave that call out"),
    "a step that loops": (in_step("while True: pass"), "no result after 3 s (first steps)", MORE_TIME),
    "a build that takes no signals": (in_build(DEAF), "no result after 3 s (loading the model)", MORE_TIME),
}
for _name, (_given, *_lines) in FAILING.items():
    _limit_s = 3.0 if "no result" in _lines[0] else SOON_S
    fault("target", _name)(
        lambda folder, given=_given, lines=_lines, s=_limit_s: ends_its_trial(trial(folder, given, timeout_s=s), *lines)
    )
HARMLESS = {
    "300 MB printed": in_build("import os\nfor _ in range(300): os.write(1, b'x' * 2**20)"),
    "a thread that never ends": in_build("import threading\nthreading.Thread(target=threading.Event().wait).start()"),
    "another working directory": in_build("import os; os.chdir('/')"),
    "a working directory that is removed": in_build(
        "import os, tempfile\nos.chdir(tempfile.mkdtemp())\nos.rmdir(os.getcwd())"
    ),
    "its own start method": in_build("import multiprocessing\nmultiprocessing.set_start_method('spawn', force=True)"),
    "warnings as errors": in_build("import warnings; warnings.simplefilter('error')"),
    "signals of its own": in_build("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"),
}
for _name, _given in HARMLESS.items():
    fault("target", _name)(lambda folder, given=_given: measured(trial(folder, given)))


@fault("disk", "the log removed while a trial runs")
def _(folder: Path) -> None:
    measured(trial(folder, in_build(f"import os; os.remove({str(folder / 'trial.log')!r})")))


@fault("disk", "a file where the state folder should be")
def _(folder: Path) -> None:
    (folder / "state").write_text("")
    (folder / "target.py").write_text(TINY_TARGET)
    command("target.py", "--headless")


@fault("target", "a file name that is not UTF-8")
def _(folder: Path) -> None:
    measured(trial(folder, TINY_TARGET, name=b"caf\xe9.py".decode("utf-8", "surrogateescape")))


@fault("target", "a file name of 255 letters")
def _(folder: Path) -> None:
    measured(trial(folder, TINY_TARGET, name="x" * 252 + ".py"))


@fault("target", "a file that links to nowhere")
def _(folder: Path) -> None:
    (folder / "other.py").symlink_to(folder / "gone.py")
    ends_its_trial(run(folder, "other.py"), "there is no file other.py", "Check the path")
