import sys
import textwrap

import pytest
import torch

from advisor.errors import TargetError
from advisor.records import TargetSpec
from advisor.workloads import demo, entrypoint
from advisor.workloads.entrypoint import load_target, one_line, parse_target

GOOD = """
    import torch
    from torch import nn

    def build():
        return nn.Linear(3, 2), torch.ones(4, 3)
"""


@pytest.fixture(autouse=True)
def _imports():
    """Leave the modules and the path as they were: the targets of different tests share names."""
    path, arguments, main = list(sys.path), sys.argv, sys.modules["__main__"]
    _forget_targets()
    yield
    sys.argv, sys.modules["__main__"] = arguments, main
    sys.path[:] = path
    _forget_targets()


def _forget_targets():
    for name in list(sys.modules):
        if name.partition(".")[0] in ("mine", "my", "helper", "broken"):
            del sys.modules[name]


@pytest.fixture
def load(tmp_path):
    """Write ``mine.py`` and load a target from its folder."""

    def load_text(text, target="mine:build", **options):
        (tmp_path / "mine.py").write_text(textwrap.dedent(text), encoding="utf-8")
        return load_target(TargetSpec(target, str(tmp_path), **options))

    return load_text


def failure(load, text, target="mine:build", **options):
    with pytest.raises(TargetError) as error:
        load(text, target, **options)
    assert error.value.hint
    assert "\n" not in error.value.message
    return error.value


# --- finding it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["mine:build", "mine", "mine.py:build", "mine.py", "./mine.py"])
def test_modules_and_files(load, target):
    assert load(GOOD, target).data.shape == (4, 3)


def test_a_file_elsewhere_imports_its_neighbours(tmp_path):
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "helper.py").write_text("import torch\ndef batch(): return torch.ones(4, 3)\n", encoding="utf-8")
    (folder / "mine.py").write_text(
        "from torch import nn\nfrom helper import batch\ndef make(): return nn.Linear(3, 2), batch()\n",
        encoding="utf-8",
    )
    for target in ("deep/mine.py:make", f"{folder}/mine.py:make"):
        assert load_target(TargetSpec(target, str(tmp_path))).data.shape == (4, 3)


def test_a_module_in_a_package(tmp_path):
    package = tmp_path / "my" / "models"
    package.mkdir(parents=True)
    (package / "mine.py").write_text(textwrap.dedent(GOOD), encoding="utf-8")
    assert load_target(TargetSpec("my.models.mine:build", str(tmp_path))).batch_size == 4


@pytest.mark.parametrize(
    ("value", "shape"), [("nn.Linear(3, 2)", (5, 3)), ("(nn.Linear(3, 2), torch.ones(4, 3))", (4, 3))]
)
def test_a_value_needs_no_function(load, value, shape):
    loop = load(f"import torch\nfrom torch import nn\nthing = {value}", "mine:thing", input_shape=(5, 3))
    assert loop.data.shape == shape


def test_a_target_is_split_at_its_last_colon():
    assert parse_target("my.module:make") == ("my.module", "make")
    assert parse_target("folder/file.py") == ("folder/file.py", "build")


@pytest.mark.parametrize("target", ["", ":", ":build", "mine:"])
def test_what_is_no_target(target):
    with pytest.raises(TargetError, match="is not a target"):
        parse_target(target)


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        ("yours:build", "there is no module 'yours'.", "timm:NAME"),
        ("yours.models:build", "there is no module 'yours.models'.", "install it"),
        ("other/mine.py:build", "there is no file other/mine.py.", ""),
        ("mine:build", "mine has no 'build'.", "It defines: LR, builder, make."),
    ],
)
def test_what_is_missing_and_what_is_there(load, target, message, hint):
    text = "import os\nfrom torch import nn, ones\nLR = 1\ndef make(): ...\ndef builder(): ...\ndef _hidden(): ...\n"
    error = failure(load, text, target)
    assert error.message == message
    assert hint in error.hint


# --- what its code does ---------------------------------------------------------------------------------------


OF_ITS_OWN = """
    def build():
        return outer()

    def outer():
        return inner({})

    def inner(sizes):
        return sizes["width"]
"""
HALVES = """
    import torch
    from torch import nn

    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 4), nn.Linear(5, 2)])

        def forward(self, x, scale=None):
            return self.layers[1](self.layers[0](x) * scale)

    def build():
        return {}
"""
OF_LAYER = "Layer 'layers.1' of Halves, Linear(in_features=5, out_features=2, bias=True), got float32[3, 4].\n  File"
IN_TORCH = "import torch\ndef build():\n    return torch.nn.Linear(3, 2)(torch.ones(4, 5))\n"
IN_ITS_DATA = "import torch\ndef batch(size):\n    return 1 / 0\ndef build():\n    return torch.nn.ReLU(), batch\n"


@pytest.mark.parametrize(
    ("text", "said", "frames"),
    [
        (OF_ITS_OWN, "build in mine failed: KeyError", ("  File", "return outer()", 'sizes["width"]', "KeyError: ")),
        (IN_TORCH, "mat1 and mat2 shapes", ("The module Linear(", "torch.nn.Linear(3, 2)(torch.ones(4, 5))")),
        (IN_ITS_DATA, "ZeroDivisionError", ("  File", "return 1 / 0")),
        (HALVES.format("Halves()(torch.ones(3, 8), 1)"), "mat1 and mat2 shapes", (OF_LAYER, "self.layers[1](")),
        (HALVES.format("Halves()(torch.ones(3, 8))"), "NoneType", ("The module Halves() got float32[3, 8]", "forward")),
        (HALVES.format("Halves()()"), "missing", ("The module Halves() got no tensor.", "Halves()()")),
    ],
)
def test_an_exception_shows_the_layer_and_the_users_last_frames(text, said, frames, load):
    error = failure(load, text)
    assert said in error.message
    assert error.details.startswith(frames[0])
    assert all(frame in error.details for frame in frames)
    assert "entrypoint.py" not in error.details
    assert "site-packages" not in error.details


def test_leaving_the_process(load):
    error = failure(load, "import sys\ndef build():\n    sys.exit(2)\n")
    assert error.message == "build in mine called sys.exit(2)."
    assert "__main__" in error.hint
    error = failure(load, "import sys\nsys.exit()\n", "mine.py:build")
    assert error.message == "importing mine.py called sys.exit(None)."


PARSES = """
    import argparse
    import sys
    import torch
    from torch import nn

    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=3)

    def build():
        arguments = parser.parse_args()
        model = nn.Linear(arguments.width, 2)
        model.arguments = list(sys.argv)
        return model, torch.ones(4, arguments.width)
"""


def test_a_target_has_a_command_line_of_its_own(load, tmp_path):
    assert load(PARSES, "mine.py:build").model.arguments == ["mine.py"]
    assert load(PARSES).model.arguments == [str(tmp_path / "mine.py")]
    given = load(PARSES, arguments=("--width", "5"))
    assert given.data.shape == (4, 5)
    assert given.model.arguments[1:] == ["--width", "5"]


def test_a_parser_that_leaves_says_why(load, capfd):
    error = failure(load, PARSES, "mine.py:build", arguments=("--widht", "5"))
    assert error.message == "build in mine.py called sys.exit(2)."
    assert "`perf-advisor train.py -- --lr 0.1`" in error.hint
    assert "usage: mine.py [-h] [--width WIDTH]" in error.details
    assert "error: unrecognized arguments: --widht 5" in error.details
    assert "parser.parse_args()" in error.details
    capfd.readouterr()
    group = "import sys\nsys.exit(print('Usage: mine.py COMMAND\\nCommands:\\n  fit', file=sys.stderr) or 2)"
    error = failure(load, group, "mine.py")
    assert error.message == "running mine.py called sys.exit(2)."
    assert "Commands:" in error.details
    assert "required arguments" in error.hint


@pytest.mark.parametrize("target", ["mine:build", "mine.py:build"])
def test_an_import_error_inside_the_module_is_not_a_missing_module(load, target):
    error = failure(load, "import a_package_that_nobody_has\n", target)
    assert error.message.startswith("importing mine")
    assert "No module named 'a_package_that_nobody_has'" in error.message
    assert error.hint.startswith("Install a_package_that_nobody_has beside perf-advisor, or set PYTHONPATH")
    assert "import a_package_that_nobody_has" in error.details


def test_a_syntax_error(load):
    error = failure(load, "def build(:\n")
    assert "SyntaxError" in error.message
    assert "mine.py" in error.details
    assert "def build(:" in error.details  # the line itself, not importlib's frames
    assert "importlib" not in error.details


def test_an_interruption_is_not_swallowed(load):
    with pytest.raises(KeyboardInterrupt):
        load("def build():\n    raise KeyboardInterrupt\n")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (RuntimeError("shapes differ"), "usual"),
        (RuntimeError("Expected all tensors to be on the same device, but found ..."), "weight.to(output.device)"),
        (RuntimeError("Error downloading a.gz: Tried https://a.b/, got: <urlopen error [Errno -2] ...>"), "network"),
        (RuntimeError("Found no NVIDIA driver on your system."), "Remove .cuda()"),
        (AssertionError("Torch not compiled with CUDA enabled"), "Remove .cuda()"),
        (RuntimeError("No CUDA GPUs are available"), "Remove .cuda()"),
        (KeyError("LOCAL_RANK"), "then starts the ranks"),
        (ValueError("using env:// rendezvous: environment variable RANK expected"), "then starts the ranks"),
    ],
)
def test_an_error_is_answered_with_what_to_do(error, hint):
    assert hint in entrypoint.hint_for(error, "usual")


# --- its arguments --------------------------------------------------------------------------------------------

TAKES = "import torch\ndef build({}):\n    return torch.nn.ReLU(), torch.ones({})\n"


@pytest.mark.parametrize(
    ("takes", "size", "config"),
    [
        ("config", "config['size']", {"size": 7}),
        ("config=None", "config['size']", {"size": 7}),
        ("cfg", "cfg['size']", {"size": 7}),
    ],
)
def test_a_build_gets_its_config(takes, size, config, load):
    assert load(TAKES.format(takes, size), config=config).data.shape == (7,)


@pytest.mark.parametrize(
    ("takes", "message", "hint"),
    [
        ("config", "build needs a config.", "--config FILE"),
        ("width, depth, size=2", "build needs the arguments width, depth.", "most: config"),
        ("cfg", "build needs the arguments cfg.", "most: config"),
    ],
)
def test_what_a_build_needs_beside_is_asked_for(takes, message, hint, load):
    error = failure(load, TAKES.format(takes, 7))
    assert error.message == message
    assert hint in error.hint


OF_A_COMPILERS_PROCESS = """SubprocException: An exception occurred in a subprocess:

Name=kernel_42
Traceback (most recent call last):
  File "pool.py", line 457, in do_job
    result = job()
CompilationError: at 3:4: no such type

Set X=1"""
OF_TORCHSCRIPT = """The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
  File "model.py", line 62, in bucket
    x = y
        ~ <--- HERE
RuntimeError: Cannot copy tensors.
"""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (OF_A_COMPILERS_PROCESS, "RuntimeError: CompilationError: at 3:4: no such type"),
        (OF_TORCHSCRIPT, "RuntimeError: Cannot copy tensors."),
        ("Original Traceback (most recent call last):\ntorch.RuntimeError: no file", "torch.RuntimeError: no file"),
        (301 * "x", f"RuntimeError: {300 * 'x'}"),
        ("CUDA error: not while capturing\nSearch for `it'.", "RuntimeError: CUDA error: not while capturing"),
        (100 * "\x1b[1mword\x1b[0m " + "end", f"RuntimeError: {' '.join(59 * ['word'])} …"),
    ],
)
def test_an_error_in_one_line(message, line):
    assert one_line(RuntimeError(message)) == line


def test_the_demo_is_a_small_convolutional_network_on_images_of_a_loader():
    built = demo.build()
    size = demo.BATCH_SIZE if torch.cuda.is_available() else demo.SMALL_BATCH_SIZE
    images, labels = next(iter(built.data))
    assert images.shape == (size, 3, 96, 96)
    assert built.model(images).shape == (size, 10)
    assert 0 <= labels.min() <= labels.max() < 10
