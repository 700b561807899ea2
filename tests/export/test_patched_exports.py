"""What an export into a config writes: the config, the rest beside it, and what a person is told."""

import pytest
import yaml
from project_configs import CONFIGS
from sample_session import sample_history, sample_request

from advisor.experiment.request import Outputs
from advisor.experiment.state import SessionState
from advisor.export.format import Found
from advisor.export.formats import format_of
from advisor.export.outputs import write_outputs
from advisor.recipe.catalog import load_catalog
from advisor.records import ConfigKind
from advisor.step.tuning import Tuning


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
