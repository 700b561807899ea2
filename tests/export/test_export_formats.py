"""The registry of export formats, which the command line and the app read, so that a format is one file; patches."""

from dataclasses import replace

import pytest
import yaml
from project_configs import CONFIGS
from sample_session import sample_history, sample_request

from advisor.cli import options
from advisor.cli.commands.measure import measure_parser
from advisor.errors import UsageError
from advisor.experiment import events
from advisor.experiment.request import Outputs
from advisor.experiment.state import SessionState
from advisor.export import formats
from advisor.export.format import File, Found
from advisor.export.formats import format_for, format_of
from advisor.export.outputs import write_outputs
from advisor.python.changes import Patched
from advisor.recipe.catalog import Catalog, load_catalog
from advisor.records import ConfigKind, Mode
from advisor.step.tuning import Tuning
from advisor.tui.views.export import offers

INFERS = {"mode": Mode.INFER}
CSV = """
from advisor.export.format import File, Format, Offer


class Csv(Format):
    option, brief, suffixes, order = "--report", ".csv", (".csv",), 55

    def offer(self, outputs):
        return Offer(self.id, "Report (CSV)", "report.csv")

    def files(self, found, path):
        yield File("Table", path, lambda: "".join(f"{name}\\n" for name in found.state.trials))
"""


@pytest.fixture
def state():
    return SessionState.of(sample_history())


def session_of(state, workload):
    """The session with these changes of its workload."""
    changed = replace(state.facts.workload, **workload)
    return SessionState.of([*sample_history(), events.FactsFound(replace(state.facts, workload=changed))])


def found_of(state, own_file=""):
    return Found(state, sample_request(), Outputs(own_file=own_file), Catalog({}))


def test_a_file_in_the_folder_is_a_format_everywhere(state, tmp_path, monkeypatch):
    (tmp_path / "csv.py").write_text(CSV, encoding="utf-8")
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    every = formats.discovered()
    monkeypatch.setattr(formats, "FORMATS", every)
    monkeypatch.setattr("advisor.tui.views.export.FORMATS", every)
    assert options._endings("--report") == ".md, .html or .csv"
    path = tmp_path / "out.csv"
    wanted = Outputs(report_path=measure_parser("").parse(["demo", "--report", str(path)]).report_path)
    assert write_outputs(state, sample_request(), wanted, Catalog({})).sentences == (f"Table written to {path}.",)
    assert path.read_text(encoding="utf-8").split() == list(state.trials)
    assert "csv" in [offered.id for offered in offers(Outputs())]


PATCHES, BUILD = Outputs(config_path="train.yaml"), Outputs(own_file="/home/ada/train.py")


@pytest.mark.parametrize(
    ("option", "path", "outputs", "wanted"),
    [
        ("--export", "tuned.yaml", Outputs(), "settings"),
        ("--export", "Tuned.PY", PATCHES, "python"),
        ("--export", "train.tuned.yaml", PATCHES, "config"),
        ("--export", "model.pt2", PATCHES, "compiled"),
        ("--export", "train.tuned.py", BUILD, "script"),
        ("--export", "tuned.py", BUILD, "python"),
        ("--export", "tuned.py", replace(BUILD, is_script=True), "script"),
        ("--report", "r.md", Outputs(), "markdown"),
        ("--json", "-", Outputs(), "json"),
        ("--trace", "step.json.gz", Outputs(), "trace"),
    ],
)
def test_a_path_means_a_format(option, path, outputs, wanted):
    assert format_for(option, path, outputs).id == wanted


def test_of_a_session_without_facts_the_change_says_what_to_do(state, tmp_path):
    state = replace(state, facts=None)
    outputs = Outputs(export_path=str(tmp_path / "train.tuned.py"), own_file=str(tmp_path / "train.py"))
    (error,) = write_outputs(state, sample_request(), outputs, Catalog({})).errors
    assert "Measure again" in error.hint


def test_a_changed_file_of_an_earlier_export_is_named(state, tmp_path, monkeypatch):
    own, model = (tmp_path / name for name in ("train.py", "model.py"))
    for path in (own, model, tmp_path / "model.tuned.py"):
        path.write_text("1\n")
    state = replace(state, facts=replace(state.facts, sources=dict.fromkeys(map(str, (own, model)), "")))
    monkeypatch.setattr("advisor.python.changes.patched_files", lambda *_, **__: Patched({str(own): b"2\n"}, ()))
    outputs = Outputs(export_path=str(tmp_path / "train.tuned.py"), own_file=str(own))
    written = write_outputs(state, sample_request(), outputs, Catalog({}))
    assert any("model.tuned.py" in sentence for sentence in written.sentences)


def test_a_model_that_was_trained_is_not_compiled_to_a_file(state, tmp_path):
    path = tmp_path / "model.pt2"
    (error,) = write_outputs(state, sample_request(), Outputs(export_path=str(path)), Catalog({})).errors
    assert "session measured training" in error.message
    assert "--mode infer" in error.hint
    assert not path.exists()


def test_a_compiled_model_says_where_it_runs(state, tmp_path, monkeypatch):
    monkeypatch.setattr("advisor.experiment.measuring.packaging.package", lambda *_: b"compiled")
    infers = session_of(state, INFERS)
    path = tmp_path / "model.pt2"
    written = write_outputs(infers, sample_request(), Outputs(export_path=str(path)), Catalog({}))
    assert path.read_bytes() == b"compiled"
    assert state.facts.workload.device_name in written.sentences[1]
    assert f"batches of exactly {state.facts.workload.batch_size}" in written.sentences[1]


def test_a_compile_cache_says_how_fast_it_starts_and_is_not_written_if_nothing_compiles(state, tmp_path, monkeypatch):
    monkeypatch.setattr("advisor.experiment.measuring.packaging.warm_start", lambda *_: (b"artifacts", 111.0, 4.0))
    path = tmp_path / "tuned.cache"
    for catalog, compiles in ((load_catalog(), True), (Catalog({}), False)):
        monkeypatch.setattr(Catalog, "compiles", lambda *_, compiles=compiles: compiles)
        written = write_outputs(state, sample_request(), Outputs(export_path=str(path)), catalog)
        assert path.exists() is compiles
        told = [*written.sentences, *(error.message for error in written.errors)]
        assert any(("take 4.0 s with it, 1 min 51 s" if compiles else "compile nothing") in one for one in told)
        path.unlink(missing_ok=True)


def test_a_script_whose_loop_is_a_trainers_gets_its_settings_from_a_file(state):
    fits = session_of(state, {"trainer": "transformers", "places": ()})
    with pytest.raises(UsageError, match="transformers") as refused:
        format_of("script").preview(found_of(fits, "train.py"))
    assert "tuned.yaml" in refused.value.hint


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"own_step": True, "loader": None},
            ["model, optimizer = tuning.prepare(model, optimizer)", "own_step(step, model)"],
        ),
        (
            {"own_step": True, "optimizer": None},
            ["model, loader = tuning.prepare(model, loader)", "own_step(step, model)"],
        ),
        (
            {"clip_norm": 0.5},
            ["= tuning.prepare(model, optimizer, loader)", "train_step(model, optimizer, loss, clip_grad=0.5)"],
        ),
        ({"mode": Mode.INFER, "loader": None}, ['tuning = advisor.load("t.yaml")', "model = tuning.infer(model)"]),
        ({"trainer": "lightning"}, ["from advisor.lightning import", 'callbacks=[TunedCallback("t.yaml")]']),
        ({"trainer": "transformers", "device": "cpu"}, ["(..., use_cpu=True, **arguments", "TunedCallback("]),
        ({"trainer": "transformers"}, ['(..., **arguments("t.yaml")', 'callbacks=[TunedCallback("t.yaml")]']),
    ],
)
def test_how_to_use_the_settings_follows_the_loop(state, changes, lines, tmp_path):
    seen = session_of(state, changes)
    (file,) = format_of("settings").files(found_of(seen), str(tmp_path / "t.yaml"))
    assert file.more[0] == "To use them, in your script:"
    assert [part for part, line in zip(lines, file.more[-2:], strict=True) if part not in line] == []
    nothing = found_of(replace(seen, measured_stack=None, scaling=None))
    assert next(iter(format_of("settings").files(nothing, "t.yaml"))).more == ()


def test_what_was_written_before_an_error_is_said(state, tmp_path, monkeypatch):
    """The first of two files is written, the second cannot be."""
    files = [File("Table", str(path), lambda: "a") for path in (tmp_path / "a.yaml", tmp_path / "gone" / "b")]
    monkeypatch.setattr(type(format_of("settings")), "files", lambda self, found, path: files)
    written = write_outputs(state, sample_request(), Outputs(export_path=str(tmp_path / "a.yaml")), Catalog({}))
    assert (len(written.sentences), len(written.errors)) == (1, 1)
    assert "gone does not exist" in written.errors[0].message


def exported(config, path, **options):
    """The sentences of an export of the sample session into a config."""
    outputs = Outputs(export_path=str(path), config_path=str(config), **options)
    written = write_outputs(SessionState.of(sample_history()), sample_request(), outputs, load_catalog())
    assert not written.errors
    return written.sentences


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("hf_run_glue.json", '  trainer = Trainer(..., args=args, callbacks=[TunedCallback("tuned.yaml")])'),
        ("lightning_cli.yaml", '  trainer = Trainer(..., callbacks=[TunedCallback("tuned.yaml")])'),
        ("accelerate_default.yaml", '  tuning = advisor.load("tuned.yaml")'),
    ],
)
def test_the_rest_goes_beside_the_config_and_can_be_loaded(name, code, tmp_path):
    told = exported(CONFIGS[name], tmp_path / "patched.yaml")
    stack = SessionState.of(sample_history()).stack_settings
    rest = Tuning.from_file(tmp_path / "tuned.yaml").settings
    assert rest
    assert rest.items() < stack.items()
    assert code in told
    assert any(line.startswith("  recognised as a config of ") and "--config-kind" in line for line in told)
    assert any(line.startswith("  precision.autocast -> ") for line in told)
    assert any(", ".join(sorted(rest)) in line for line in told)
    assert "# speed-up together with those in patched.yaml: 1.97x" in (tmp_path / "tuned.yaml").read_text()


@pytest.mark.parametrize("stay", [False, True])
def test_workers_live_on_in_the_config_only_where_a_setting_says_so(stay, tmp_path):
    config = tmp_path / "train.yaml"
    config.write_text("num_workers: 0\npersistent_workers: false\n")
    settings = {"data.num_workers": 2, **({"data.persistent_workers": True} if stay else {})}
    won = type("Won", (Found,), {"settings": settings})
    found = won(SessionState.of(sample_history()), sample_request(), Outputs(config_path=str(config)), load_catalog())
    (file,) = format_of("config").files(found, str(tmp_path / "tuned.yaml"))
    written = yaml.safe_load(file.content())
    assert (written["num_workers"], written["persistent_workers"]) == (2, stay)


def test_the_rest_overwrites_neither_the_config_nor_a_file_of_the_user_s(tmp_path):
    exported(CONFIGS["lightning_cli.yaml"], tmp_path / "tuned.yaml")
    assert (tmp_path / "tuned.yaml").read_text().startswith("# lightning.pytorch")
    assert Tuning.from_file(tmp_path / "tuned.settings.yaml").settings
    of_another_target = "# Made by perf-advisor 0.2.0.\n# target: other:build\n\n{}\n"
    for theirs in ("# lightning.pytorch\n", "# values that perf-advisor found\nlr: 0.1\n", of_another_target):
        (tmp_path / "tuned.yaml").write_text(theirs)
        exported(CONFIGS["lightning_cli.yaml"], tmp_path / "other.yaml")
        assert (tmp_path / "tuned.yaml").read_text() == theirs
        assert Tuning.from_file(tmp_path / "other.settings.yaml").settings


def test_a_plain_config_with_its_section_can_be_loaded(tmp_path):
    for name in ("plain_windows.yaml", "plain_detr.json", "plain_train.toml", "plain_nested.yaml"):
        path = tmp_path / f"tuned-{name}"
        told = exported(CONFIGS[name], path)
        assert any(f'advisor.load("{path.name}")' in line for line in told)
        assert Tuning.from_file(path).settings
        assert not (tmp_path / "tuned.yaml").exists()


def test_a_kind_that_was_said_is_used(tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("epochs: 3\n")
    told = exported(config, tmp_path / "patched.yaml", config_kind=ConfigKind.TIMM)
    assert not any("recognised" in line for line in told)
    assert "amp_dtype: bfloat16" in (tmp_path / "patched.yaml").read_text()
    assert not (tmp_path / "tuned.yaml").exists()  # timm has words for all three settings
