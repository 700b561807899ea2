"""The documents keep their word: tables, options, commands, code, fields and links are checked against the code."""

import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from recipes_page import PAGE, with_table
from sample_session import sample_history, sample_request

import advisor
from advisor.cli import grammar
from advisor.cli.options import OPTIONS
from advisor.cli.parser import Parser
from advisor.errors import ExitCode
from advisor.experiment.state import SessionState
from advisor.export.json_report import report
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import TargetSpec
from advisor.workloads.entrypoint import load_target

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DOCS = {f"docs/{path.name}": path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
WRITTEN = {"README.md": README, **DOCS}
FENCE = re.compile(r"^```([\w ]+)\n(.*?)^```$", re.M | re.S)
BLOCKS = [block for text in WRITTEN.values() for block in FENCE.findall(text)]
SHELL = [
    command.strip()
    for language, text in (*BLOCKS, *FENCE.findall(CONTRIBUTING))
    if language == "bash"
    for line in text.splitlines()
    for command in line.partition(" #")[0].split("&&")
]
BUILD = "import torch\n\n\ndef build(config=None):\n    return torch.nn.Linear(512, 8), torch.randn(4, 512)\n"
PYTHON = [text for language, text in BLOCKS if language == "python"]
BUILDERS = [text for text in PYTHON if "def build(" in text]
INLINE = re.findall(r"`([^`]+)`", FENCE.sub("", "\n".join(WRITTEN.values())))
INLINE = [" ".join(text.split()) for text in INLINE]
COMMANDS = sorted({text for text in (*SHELL, *INLINE) if text.startswith("perf-advisor ") and '="' not in text})
# test_documented_commands.py runs the others whole. These are run by tests of their own: init, ab, mcp, converge and
# compiling to a file in processes, what joins another machine, and what changes a script
# (tests/scripts/test_changed_scripts.py), for which that has to run.
NAMES_ELSEWHERE = tuple(f"perf-advisor {name} " for name in ("init", "ab", "mcp", "converge", "follow"))
PARTS_ELSEWHERE = (*NAMES_ELSEWHERE, "--nnodes", "--export model.pt2", "--diff")
ELSEWHERE = [command for command in COMMANDS if any(part in f"{command} " for part in PARTS_ELSEWHERE)]


# --- the table of recipes -------------------------------------------------------------------------------------


def test_the_table_is_current():
    text = PAGE.read_text(encoding="utf-8")
    assert with_table(text, load_catalog()) == text, "run: python tests/recipes_page.py"


def test_each_recipe_has_its_measurements():
    rows = re.findall(
        r"^\| (?!what |---)(.+)$", (ROOT / "tests" / "gpu" / "RESULTS.md").read_text(encoding="utf-8"), re.M
    )
    assert len(rows) <= 150
    assert set(load_catalog().recipes) <= {one for row in rows for one in re.findall(r"`(\w+)`", row.split(" | ")[0])}


def test_the_documents_are_short():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert len(README.split()) <= 900
    assert len(CONTRIBUTING.split()) <= 2000
    prose = {name: text for name, text in WRITTEN.items() if name != "docs/results.md"}  # measurements
    assert sum(len(text.split()) for text in (*prose.values(), CONTRIBUTING, changelog)) <= 12_000


# --- commands and options -------------------------------------------------------------------------------------


def write_files():
    """Write what the documents' commands name into the working directory."""
    for folder in ("examples", "my_recipes"):
        Path(folder).mkdir()
    for name in ("mymodel.py", "mymodule.py", "train.py", "examples/train.py", "build_train.py"):
        Path(name).write_text(BUILD, encoding="utf-8")
    for name in ("train.yaml", "args.yaml", "config.yaml", "training_args.yaml"):
        Path(name).write_text("batch_size: 8\nworkers: 2\nloader: {jobs: 2}\n", encoding="utf-8")
    Path("tuned.yaml").write_text("step.zero_grad: zeros\n", encoding="utf-8")


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    """A working directory with the files that the documents' commands name."""
    monkeypatch.chdir(tmp_path)
    write_files()
    return tmp_path


class Understood(Exception):
    """The options of a command were read: it does nothing more."""


@pytest.fixture
def understand(monkeypatch):
    """Reads a command line, without doing what it says."""

    def read(parser, arguments):
        read_options(parser, arguments)
        raise Understood

    def understand_line(arguments):
        command = grammar.parse(arguments)
        if isinstance(command, partial):  # which reads its options when it is called
            with monkeypatch.context() as patch:
                patch.setattr(Parser, "parse", read)
                with pytest.raises(Understood):
                    command()

    read_options = Parser.parse
    return understand_line


@pytest.mark.parametrize("command", ELSEWHERE)
def test_a_command_is_understood(user_folder, command, understand, capsys):
    arguments = shlex.split(command.partition(" | ")[0])[1:]
    if "--help" in arguments:
        with pytest.raises(SystemExit) as exited:
            grammar.parse(arguments)()
        assert exited.value.code == ExitCode.OK
    else:
        understand(arguments)


@pytest.mark.parametrize("text", sorted({text for text in INLINE if text.startswith("--") and text != "--"}))
def test_an_option_is_understood(user_folder, text, understand):
    words = shlex.split(text)
    assert words[0] in OPTIONS
    if words[1:]:
        understand(["demo", *words])


def commands_for_ci(heading):
    done = [sys.executable, ROOT / ".ci" / "readme_commands.py", heading]
    return subprocess.run(done, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_commands_that_people_copy_are_there_and_are_what_ci_runs():
    assert "pip install . && perf-advisor demo" in README.splitlines()
    assert "pip install -e '.[dev]' && pytest -n 2" in README.splitlines()
    tried = ["pip install .", "perf-advisor demo", "perf-advisor examples/train.py -- --epochs 1"]
    assert commands_for_ci("Try it") == tried
    assert commands_for_ci("Documents") == ["pip install -e '.[dev]'", "pytest -n 2"]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(f'readme_commands.py "{heading}"' in ci for heading in ("Try it", "Documents"))
    assert "\nrun python -m pytest " in ci
    named = [word for command in tried for word in command.split() if word.endswith(".py")]
    assert all((ROOT / name).is_file() for name in named), "they are in a clone"


@pytest.mark.parametrize("config", [None, yaml.safe_load((ROOT / "examples" / "config.yaml").read_text())])
def test_the_example_of_a_build_trains_on_batches_of_its_config(config):
    loop = load_target(TargetSpec("mymodel:build", str(ROOT / "examples"), device="cpu", config=config))
    assert isinstance(loop.model, torch.nn.Module)
    assert (loop.data.batch_size, loop.data.num_workers) == (64, 0)


@pytest.mark.parametrize("name", re.findall(r"\bPERF_ADVISOR_\w+", README + CONTRIBUTING))
def test_an_environment_variable_is_read(name):
    assert any(name in path.read_text(encoding="utf-8") for path in (ROOT / "advisor").rglob("*.py"))


# --- code and settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", BUILDERS)
def test_a_builder_is_a_target(user_folder, text):
    for library in re.findall(r"^(?:import|from) (\w+)", text, re.M):
        pytest.importorskip(library)
    Path("mymodel.py").write_text(text, encoding="utf-8")
    shape = (8, 512) if "return torch.nn" in text else None
    config = {"width": 64} if "config" in text else None
    loop = load_target(TargetSpec("mymodel.py:build", str(user_folder), input_shape=shape, config=config))
    assert isinstance(loop.model, torch.nn.Module)


def test_the_loop_trains(user_folder):
    settings = Settings({"step.zero_grad": "zeros", "data.batch_size": 4})
    Path("tuned.yaml").write_text(settings.to_yaml(), encoding="utf-8")
    model = torch.nn.Linear(4, 2)
    data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.randn(8, 2))
    namespace = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": torch.utils.data.DataLoader(data, batch_size=2),
        "loss": torch.nn.MSELoss(),
    }
    loops = {text for text in PYTHON if text not in BUILDERS}
    assert len(loops) == 1
    exec(compile(loops.pop(), "README", "exec"), namespace)
    assert torch.isfinite(namespace["loss_value"])
    assert namespace["loader"].batch_size == 4


def test_settings_are_settings():
    files = [text for language, text in BLOCKS if language == "yaml"]
    assert files
    for text in files:
        load_catalog().check(Settings(yaml.safe_load(text)))


# --- the JSON report ------------------------------------------------------------------------------------------


def _table_of(first_cell: str) -> dict[str, list[str]]:
    """The rows of the table with this head: the names in the first cell, and those in the second."""
    rows = DOCS["docs/json.md"].partition(f"\n| {first_cell} |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [row.split("|")[1:3] for row in rows]
    return {name: re.findall(r"`([^`]+)`", text) for left, text in cells for name in re.findall(r"[\w]+", left)}


def test_the_fields_are_in_the_report():
    fields = _table_of("field")
    made = report(SessionState.of(sample_history()), sample_request(), advisor.__version__)
    assert set(fields) == set(made)
    for name in ("baseline", "stack"):
        assert set(fields[name]) <= set(made[name]), name
    for name in ("trials", "recommendations"):
        assert made[name]
        assert all(set(fields[name]) <= set(entry) for entry in made[name]), name


def test_the_exit_codes_are_all_there():
    assert {int(code) for code in _table_of("exit code")} == set(map(int, ExitCode))


# --- links ----------------------------------------------------------------------------------------------------


def _links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)) if "://" not in link]


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


EXAMPLES = {"recipes/my_recipe.py", "path/file.py"}  # names in the guides that stand for a file of the reader's own


def test_the_modules_that_the_guides_name_are_there():
    named = set(re.findall(r"[\w/]+\.py\b", CONTRIBUTING + DOCS["docs/measuring.md"])) - EXAMPLES
    modules = [path for folder in ("advisor", "recipes", "tests", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert named
    assert [name for name in sorted(named) if not any(path.match(name) for path in modules)] == []


def test_the_workflow_runs_commands_that_are_there(user_folder, understand):
    [text] = [text for language, text in BLOCKS if language == "yaml workflow"]
    [job] = yaml.safe_load(text)["jobs"].values()
    commands = [step["run"] for step in job["steps"] if step.get("run", "").startswith("perf-advisor ")]
    assert commands
    for command in commands:
        understand(shlex.split(command)[1:])


DOCUMENTS = {**WRITTEN, "CONTRIBUTING.md": CONTRIBUTING}
LINKS = [(name, link) for name, text in DOCUMENTS.items() for link in _links(text)]


@pytest.mark.parametrize(("document", "link"), LINKS)
def test_a_link_leads_somewhere(document, link):
    path, _, anchor = link.partition("#")
    target = (ROOT / document).parent / path if path else ROOT / document
    assert target.is_file()
    if anchor:
        assert anchor in _anchors(target.read_text(encoding="utf-8"))
