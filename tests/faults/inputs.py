"""Faults of what a person gives: command lines, configs, settings files, and the targets themselves."""

from pathlib import Path

from planted import TINY_TARGET

import advisor
from advisor.errors import AdvisorError
from faults.register import Met, command, ends_its_trial, fault, measured, run, trial

COMMANDS = {
    "an option that does not exist": ["demo", "--bugdet", "5m"],
    "a budget of no time": ["demo", "--budget", "0s"],
    "a budget of 400 digits": ["demo", "--budget", "9" * 400],
    "a batch size of a superscript digit": ["demo", "--batch-size", "²"],
    "a device that does not exist": ["demo", "--device", "cuda:x"],
    "a recipe that does not exist": ["demo", "--only", "nothing_of_that_name"],
    "a report without a known ending": ["demo", "--report", "report.pdf"],
    "an output in a folder that is gone": ["demo", "--json", "gone/out.json"],
    "an output whose name is too long": ["demo", "--json", "x" * 300],
    "a folder of recipes that is gone": ["demo", "--recipes", "gone"],
    "a config that is gone": ["demo", "--config", "gone.yaml"],
    "no session to take up": ["demo", "--resume"],
    "no session to report": ["report"],
    "a session's name with a NUL": ["report", "a\0b"],
    "a map to nowhere": ["demo", "--map", "data.num_workers=list.²"],
}
for _name, _arguments in COMMANDS.items():
    fault("command line", _name)(lambda folder, arguments=_arguments: Met(command(*arguments)))

CONFIGS = {
    "billion laughs": "a: &a [x]\n"
    + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "an anchor inside itself": "a: &a [*a]\n",
    "a bool that is none": "a: !!bool maybe\n",
    "a date that is none": "a: !!timestamp soon\n",
    "an empty int": "a: !!int ''\n",
    "a Python object": "a: !!python/object/apply:os.system [exit]\n",
    "5,000 brackets": "[" * 5000,
    "not UTF-8": b"a: \xff\xfe\n",
    "a list in place of a mapping": "- a\n",
    "a key that is no name": "? [1, 2]\n: 3\n",
    "a number as a name": "1: 2\n",
}


def _config(folder: Path, text: str | bytes) -> Met:
    (folder / "c.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return Met(command("demo", "--config", "c.yaml"))


def _settings(folder: Path, text: str) -> Met:
    (folder / "tuned.yaml").write_text(text)
    try:
        advisor.load("tuned.yaml")
    except AdvisorError as error:
        return Met(error.message)
    raise AssertionError("it was read")


for _name, _text in CONFIGS.items():
    fault("config", _name)(lambda folder, text=_text: _config(folder, text))
SETTINGS = {
    "a setting that nobody knows": "precision.autocats: bfloat16\n",
    "a value that it cannot have": "precision.autocast: purple\n",
    "a config in its place": "trainer: {lr: 1}\n",
    "a bool that is none": "precision.autocast: !!bool maybe\n",
    "a JSON that is cut": '{"precision.autocast": ',
}
for _name, _text in SETTINGS.items():
    fault("settings file", _name)(lambda folder, text=_text: _settings(folder, text))


def in_build(body: str) -> str:
    return TINY_TARGET.replace(
        "def build():\n", "def build():\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    )


def in_step(body: str) -> str:
    return TINY_TARGET.replace("        return 1.0 * x", "".join(f"        {line}\n" for line in body.split("\n")))


FAILING: dict[str, str | bytes] = {
    "a syntax error": "def build(:\n",
    "no text at all": b"\x00\xff",
    "nothing to build": "x = 1\n",
    "an import that is missing": "import nothing_of_that_name\n",
    "an exception in building": in_build("raise RuntimeError('no data')"),
    "an exception with escape sequences": in_build("raise RuntimeError('\\x1b[2J\\x9b31m')"),
    "an exception with surrogates": in_build("raise RuntimeError('\\udcff')"),
    "an exception that cannot be shown": in_build(
        "class E(Exception):\n    def __str__(self): raise ValueError('x')\nraise E"
    ),
    "sys.exit in building": in_build("import sys; sys.exit('usage: train.py')"),
    "KeyboardInterrupt in building": in_build("raise KeyboardInterrupt"),
    "endless recursion": in_build("def f(): return f()\nf()"),
    "a build that returns nothing": "def build():\n    return None\n",
    "a build that returns text": "def build():\n    return 'model'\n",
    "an empty batch": TINY_TARGET.replace("torch.randn(8, 16), torch.randint(4, (8,))", "()"),
    "a batch that does not fit": TINY_TARGET.replace("torch.randn(8, 16)", "torch.randn(8, 17)"),
    "an exception in the step": in_step("raise ValueError('no forward')"),
    "more memory than there is": in_step("return torch.empty(2**50)"),
    "a process that ends itself": in_build("import os; os._exit(7)"),
    "a segmentation fault": in_build("import ctypes; ctypes.string_at(0)"),
    "an abort": in_build("import os; os.abort()"),
    "killed from outside": in_build("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    "garbage on every descriptor": in_build(
        "import os\nfor number in range(3, 1000):\n    try: os.write(number, b'x' * 100)\n    except OSError: pass"
    ),
}
for _name, _given in FAILING.items():
    fault("target", _name)(lambda folder, given=_given: ends_its_trial(trial(folder, given)))
HANGING = {
    "a build that hangs": in_build("import time; time.sleep(600)"),
    "a step that loops": in_step("while True: pass"),
    "a build that takes no signals": in_build(
        "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)"
    ),
}
for _name, _given in HANGING.items():
    fault("target", _name)(lambda folder, given=_given: ends_its_trial(trial(folder, given, timeout_s=3.0)))
HARMLESS = {
    "standard output closed": in_build("import sys; sys.stdout.close()"),
    "no standard output": in_build("import sys; sys.stdout = None"),
    "a tee without flush": in_build("import sys\nclass Tee:\n    def write(self, text): pass\nsys.stdout = Tee()"),
    "surrogates printed": in_build("print('\\udcff')"),
    "300 MB printed": in_build("import os\nfor _ in range(300): os.write(1, b'x' * 2**20)"),
    "a thread that never ends": in_build("import threading\nthreading.Thread(target=threading.Event().wait).start()"),
    "another working directory": in_build("import os; os.chdir('/')"),
    "its own start method": in_build("import multiprocessing\nmultiprocessing.set_start_method('spawn', force=True)"),
    "warnings as errors": in_build("import warnings; warnings.simplefilter('error')"),
    "closed descriptors, and files under their numbers": in_build(
        "import os\nos.closerange(3, 256)\nglobal own\nown = [open(os.devnull) for _ in range(30)]"
    ),
    "signals of its own": in_build("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"),
}
for _name, _given in HARMLESS.items():
    fault("target", _name)(lambda folder, given=_given: measured(trial(folder, given)))


@fault("target", "a file name that is not UTF-8")
def _(folder: Path) -> Met:
    return measured(trial(folder, TINY_TARGET, name=b"caf\xe9.py".decode("utf-8", "surrogateescape")))


@fault("target", "a file name of 255 letters")
def _(folder: Path) -> Met:
    return measured(trial(folder, TINY_TARGET, name="x" * 252 + ".py"))


@fault("target", "a file that links to nowhere")
def _(folder: Path) -> Met:
    (folder / "other.py").symlink_to(folder / "gone.py")
    return ends_its_trial(run(folder, "other.py"))
