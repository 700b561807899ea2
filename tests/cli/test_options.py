import subprocess

import pytest

from advisor.cli.commands.measure import Measure, measure_parser
from advisor.cli.grammar import COMMANDS, parse
from advisor.cli.options import TOPICS, bytes_of, key_map_of, milliseconds_of, score_of, shape_of, share_of
from advisor.cli.parser import check_export, check_outputs
from advisor.errors import UsageError
from advisor.experiment.past.journal import sessions_folder
from advisor.experiment.request import DEFAULT_BUDGET_S, Outputs, Request, beside_own_files
from advisor.figures.options import device_of, names_of, seconds_of
from advisor.judging.objective import Goal
from advisor.records import Mode, Numerics, Objective


@pytest.mark.parametrize(
    ("read", "texts", "value"),
    [
        (seconds_of, ("90", "90s", "1.5m"), 90),
        (seconds_of, ("5m", "300"), 300),
        (seconds_of, ("1h", "60m"), 3600),
        (seconds_of, ("2h5m7s",), 7507),
        (share_of, ("90%", "90 %", "0.9"), 0.9),
        (milliseconds_of, ("20ms", "0.02 S"), 20.0),
        (bytes_of, ("2KB", "2 kb", "2000B"), 2 * 10**3),
        (bytes_of, ("3MB",), 3 * 10**6),
        (bytes_of, ("16G", "16GiB", "16 g", "16384MiB", "0.015625TiB"), 16 * 2**30),
        (bytes_of, ("1.5KiB", "1536 b"), 3 * 2**9),
        (shape_of, ("64x3x224", "64X3x224", "64,3,224"), (64, 3, 224)),
        (device_of, ("cuda:12", "CUDA:12"), "cuda:12"),
        (device_of, ("auto",), "auto"),
        (device_of, ("cpu",), "cpu"),
        (names_of, ("b, a,,b", "b,a"), ("b", "a")),
        (
            key_map_of,
            ("precision.autocast=t.p, data.batch_size=bs",),
            [("precision.autocast", "t.p"), ("data.batch_size", "bs")],
        ),
    ],
)
def test_a_value_is_read(read, texts, value):
    assert [read(text) for text in texts] == [value] * len(texts)


@pytest.mark.parametrize(
    ("read", "noun", "texts"),
    [
        (share_of, "share", ["0", "0%", "90", "101%", "1.01", "-0.5", "", "%", "half", "nan", "1e-1", "٩٠%"]),
        (
            seconds_of,
            "duration",
            ["0", "0s", "-5", "-5m", "", " ", "m", "5x", "nan", "inf", "1e3", "5m1h", "٣s", "9" * 400],
        ),
        (bytes_of, "size", ["16", "0GiB", "-1GiB", "GiB", "", "16XB", "1e3GB", "0.1B", "9" * 400 + "GB"]),
        (milliseconds_of, "latency", ["20", "0ms", "5m", "-1ms", "ms", "9" * 400 + "s"]),
        (shape_of, "shape", ["", "0x3", "3x", "x3", "3xx4", "-1x3", "3.5x2", "axb", "²x3"]),
        (device_of, "device", ["gpu", "cuda:", "cuda:x", "mps", "cuda:-1"]),
        (score_of, "score", ["nan", "inf", "75%", ""]),
    ],
)
def test_what_is_no_value_is_refused(read, noun, texts):
    for text in texts:
        with pytest.raises(UsageError, match=f"is not a {noun}"):
            read(text)


def test_a_score_is_asked_for():
    given = ["--eval", "m:evaluate", "--min-score", "-2.5", "--max-drop", "0.5%", "--steps", "20"]
    request = parse(["m:b", *given]).request
    assert (request.evaluate, request.min_score) == ("m:evaluate", -2.5)
    assert (request.max_drop, request.eval_steps) == (0.005, 20)
    assert parse(["m:b"]).request.eval_steps == 100
    assert parse(["m:b", "--eval", "m:evaluate", "--min-score=1e-05"]).request.min_score == 1e-5


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_bare_target_takes_every_default(tmp_path):
    invocation = parse(["mymodel:build"])
    assert isinstance(invocation, Measure)
    assert invocation.outputs == Outputs()
    assert not invocation.headless
    assert invocation.resume is None
    assert invocation.request == Request(target=invocation.request.target, command=("mymodel:build",))
    assert invocation.request.goal == Goal(Objective.THROUGHPUT, None, Numerics.CLOSE)
    assert invocation.request.target.target == "mymodel:build"
    assert invocation.request.target.directory == str(tmp_path)


def test_every_option_arrives(tmp_path):
    config = tmp_path / "train.yaml"
    config.write_text("trainer:\n  precision: 32\n")
    scripts = [tmp_path / "train.py", tmp_path / "more.py"]
    for script in scripts:
        script.touch()
    line = (
        "m:b --headless --json out.json --export tuned.yaml --config train.yaml --report report.md --budget 90s "
        "--objective memory --memory-limit 16GiB --mode infer --device cuda:1 --gpus 1 "
        "--batch-size 32 --latency-limit 20ms "
        "--input 64x3x224x224 --only autocast --recipes . --allow changed --map precision.autocast=trainer.precision "
        "--script train.py --script more.py --trace step.json.gz"
    )
    invocation = parse(line.split())
    request, outputs = invocation.request, invocation.outputs
    assert invocation.headless
    assert outputs == Outputs(
        "out.json", "tuned.yaml", "report.md", "train.yaml", {"precision.autocast": "trainer.precision"}, "step.json.gz"
    )
    assert request.budget_s == 90
    assert (request.objective, request.allow) == (Objective.MEMORY, Numerics.CHANGED)
    assert request.memory_limit_bytes == 16 * 2**30
    assert request.goal == Goal(Objective.MEMORY, 16 * 2**30, Numerics.CHANGED, 20.0)
    assert request.only == ("autocast",)
    assert request.recipe_folders == (str(tmp_path),)
    assert request.scripts == tuple(map(str, scripts))
    assert request.config_path == str(config)
    assert request.key_map == {"precision.autocast": "trainer.precision"}
    spec = request.target
    assert (spec.mode, spec.device, spec.batch_size, spec.input_shape) == (Mode.INFER, "cuda:1", 32, (64, 3, 224, 224))
    assert spec.config == {"trainer": {"precision": 32}}


def test_json_to_standard_output_needs_no_app():
    invocation = parse(["m:b", "--json", "-"])
    assert invocation.headless
    assert invocation.outputs.json_to_stdout
    assert not parse(["m:b"]).headless


@pytest.mark.parametrize(
    ("arguments", "target", "resume"),
    [
        (["--resume"], "", ""),
        (["--resume", "20260101-a"], "", "20260101-a"),
        (["m:b", "--resume"], "m:b", ""),
        (["m:b", "--resume", "20260101-a"], "m:b", "20260101-a"),
        (["--resume", "m:b"], "m:b", ""),
        (["--resume", "demo"], "demo", ""),
    ],
)
def test_resuming(arguments, target, resume):
    invocation = parse(arguments)
    assert invocation.resume == resume
    assert invocation.request.target.target == target


@pytest.mark.parametrize(
    ("arguments", "of_target"),
    [
        (["m:b"], ()),
        (["m:b", "--"], ()),
        (["m:b", "--budget", "90s", "--", "--lr", "0.1"], ("--lr", "0.1")),
        (["train.py", "--", "--budget", "1", "--", "x"], ("--budget", "1", "--", "x")),
    ],
)
def test_what_follows_two_dashes_is_the_targets(arguments, of_target):
    spec = parse(arguments).request.target
    assert spec.arguments == of_target
    assert spec.command == (f"{spec.target} -- {' '.join(of_target)}" if of_target else spec.target)


def test_a_config_without_a_target_is_only_written_to(tmp_path):
    (tmp_path / "train.yaml").write_text("lr: 0.1\n")
    resumed = parse(["--resume", "--config", "train.yaml", "--export", "new.yaml"])
    assert resumed.outputs.config_path == "train.yaml"
    assert (resumed.request.config_path, resumed.request.target.config) == (None, None)


def test_a_session_is_resumed_with_another_budget():
    assert parse(["--resume", "--budget", "90s"]).budget_s == 90.0
    assert parse(["--resume"]).budget_s is None
    assert parse(["m:b"]).request.budget_s == DEFAULT_BUDGET_S
    assert parse(["demo"]).request.budget_s == 90.0


@pytest.mark.parametrize(
    ("arguments", "words", "hint"),
    [
        (["m:b", "--budjet", "5m"], "no option --budjet", "Did you mean --budget?"),
        (["m:b", "--buget", "5m"], "no option --buget", "Did you mean --budget?"),
        (["sesions"], "looks like a command", "Did you mean `perf-advisor sessions`"),
        (["m:b", "--only", "compil"], "no recipe 'compil'", "Did you mean compile"),
        (["demo", "--only", "nope"], "no recipe 'nope'", "lists the recipes"),
        (["recipes", "nope"], "no recipe 'nope'", "lists the recipes"),
        (["demo", "--precision"], "no option --precision", "lists"),
        (["train.py", "--lr", "0.1"], "no option --lr", "after --: `perf-advisor train.py -- --lr ...`"),
        (["m:b", "--budget=0"], "--budget: '0'", "90s"),
        (["m:b", "--budget=1"], "--budget: '1' may be seconds or minutes", "1m"),
        (["m:b", "--max-drop", "90"], "--max-drop: '90' is not a share", "1% or 0.01"),
        (["m:b", "--gpus", "2", "--device", "cuda:1"], "--device cuda:1 for one", "CUDA_VISIBLE_DEVICES"),
        (["m:b", "--nnodes", "2"], "a place to meet", "--rdzv-endpoint HOST:PORT"),
        (["follow", "--gpus", "2"], "no session to follow", "--nnodes"),
        (["m:b", "--only", "autocats"], "--only: there is no recipe 'autocats'", "Did you mean autocast"),
        (["m:b", "--only", "autocast", "--skip", "autocast"], "both name autocast", "Leave it out"),
        (["m:b", "--accept", "batch_size=-2"], "--accept: batch_size has no value -2", "Choose one such as 0, 8"),
        (["m:b", "--json", "nowhere/x.json"], "--json: the folder nowhere does not exist", "Make it"),
        (["m:b", "--export", "m.onnx"], "m.onnx has no ending of a known format", ".yaml, .yml, .pt2 or .cache"),
        (["m:b", "--export", "x.yaml", "--json", "./x.yaml"], "--json and --export name the same file", "different"),
        (["m:b", "--map", "precision.autocast=a"], "--map", "--config FILE"),
        (["m:b", "c:d"], "'c:d' is one argument too many", "--help"),
        (["--headless"], "no target", "perf-advisor demo"),
        (
            ["--headless", "recipes"],
            "come first",
            "Did you mean `perf-advisor recipes`? A file of that name is ./recipes.py:build",
        ),
        (["recipe"], "'recipe' looks like a command", "Did you mean `perf-advisor recipes`"),
    ],
)
def test_a_mistake_says_what_is_wrong_and_what_to_do(arguments, words, hint):
    with pytest.raises(UsageError) as caught:
        parse(arguments)()
    error = caught.value
    assert words in error.message
    assert hint in error.hint
    assert ("Did you mean" in hint) == ("Did you mean" in error.hint)
    assert "\n" not in error.message + error.hint


def test_a_target_named_like_a_command_goes_by_its_file():
    for target in ("./recipes.py:build", "nope"):
        assert parse([target]).request.target.target == target


def test_lists_add_up():
    line = "demo --only compile,tf32 --only autocast,tf32 --skip threads --skip control --accept batch_size=64"
    request = parse([*line.split(), "--accept", "half_weights", "--device", "cpu"]).request
    assert request.only == ("compile", "tf32", "autocast")
    assert request.skip == ("threads", "control")
    assert request.accept == (("batch_size", 64), ("half_weights", None))
    assert parse(["demo", "--only", "compile"]).request.only == ("compile",)  # nothing stays from the line before
    assert request.target.device == "cpu"


@pytest.mark.parametrize("word", ["help", "--help", "--version"])
def test_version_and_help_exit_by_themselves(word, capsys):
    with pytest.raises(SystemExit) as caught:
        parse([word])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    options = {name for one in measure_parser("")._actions for name in one.option_strings if name.startswith("--")}
    wanted = (*(f"{topic}: " for topic in TOPICS), *(f"perf-advisor {name}" for name in COMMANDS), *options)
    assert [name for name in wanted if name not in text] == [] or (word == "--version" and "perf-advisor 0." in text)


def test_a_file_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(UsageError, match="cannot be written"):
        check_outputs(Outputs(export_path=str(tmp_path / "tuned.yaml")))


def test_an_output_whose_links_lead_in_a_circle_is_refused(tmp_path):
    (tmp_path / "a.json").symlink_to("b.json")
    (tmp_path / "b.json").symlink_to("a.json")
    with pytest.raises(UsageError, match=r"--json: .*a.json cannot be written"):
        check_outputs(Outputs(json_path=str(tmp_path / "a.json")))


def test_no_output_replaces_a_file_that_a_person_wrote(tmp_path):
    for name in ("train.py", "mine.py", "demo.py", "c.yaml"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "link.py").symlink_to("mine.py")
    for name in ("train.py", "./mine.py", "link.py"):
        with pytest.raises(UsageError, match=f"--export: {name} is the code that is measured"):
            parse(["train.py:build", "--script", "mine.py", "--export", name, "--headless"])()
    with pytest.raises(UsageError, match="--config and --json name the same file"):
        parse(["train.py:build", "--config", "c.yaml", "--json", "c.yaml"])
    check_outputs(Outputs(config_path="c.yaml", export_path="c.yaml"))  # patched in its place
    beside_own_files(Outputs(export_path="demo.py"), parse(["demo"]).request)


def test_an_export_replaces_only_what_perf_advisor_wrote(tmp_path):
    target = parse(["demo"]).request.target
    (tmp_path / "notes.yaml").write_text("mine: true\n")
    with pytest.raises(UsageError, match="exists, and may be a file of your own") as refused_file:
        check_export(Outputs(export_path="notes.yaml"), target)
    assert "--force" in refused_file.value.hint
    (tmp_path / "ours.yaml").write_text("# Written by perf-advisor.\n# target: demo\n")
    (tmp_path / "config.tuned.yaml").write_text("mine: true\n")
    (tmp_path / "empty.yaml").touch()
    for name in ("ours.yaml", "config.tuned.yaml", "empty.yaml", "new.yaml"):
        check_export(Outputs(export_path=name), target)
    check_export(Outputs(config_path="notes.yaml", export_path="notes.yaml"), target)


def test_standard_error_as_a_device_is_a_file_like_any_other():
    check_outputs(Outputs(json_path="/dev/null"))


@pytest.mark.parametrize(
    ("option", "name", "typed"),
    [
        *(("--trace", name, ".json.gz") for name in ("-", "step.txt", "step.gz", "step.json")),
        *(("--export", name, ".yaml") for name in ("tuned", "tuned.txt")),
    ],
)
def test_the_ending_of_a_name_says_what_to_write(option, name, typed):
    assert parse(["demo", "--trace", "step.json.gz"]).outputs == Outputs(trace_path="step.json.gz")
    with pytest.raises(UsageError) as caught:
        parse(["demo", option, name])
    assert name in caught.value.message
    assert typed in caught.value.hint
    with pytest.raises(UsageError, match="name the same file"):
        parse(["demo", "--trace", "out.json.gz", "--json", "out.json.gz"])


def test_bash_completes_recipes_and_sessions(capsys, own_state) -> None:
    parse(["completion"])()
    script = capsys.readouterr().out
    sessions_folder().mkdir(parents=True)
    (sessions_folder() / "20261201-101500.jsonl").touch()

    def completed(*words: str) -> list[str]:
        line = f"COMP_WORDS=(perf-advisor {' '.join(words)}) COMP_CWORD={len(words)}; _perf_advisor"
        command = ["bash", "-c", f"{script}\n{line}; echo ${{COMPREPLY[@]}}"]
        return subprocess.check_output(command, text=True).split()

    assert completed("--only", "tf32,auto") == ["tf32,autocast"]
    assert completed("open", "2026") == ["20261201-101500"]
    assert [*completed("compl"), *completed("--mod")] == ["completion", "--mode"]
