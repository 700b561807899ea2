import string

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from advisor.errors import UsageError
from advisor.files.config_file import dumped, read_text
from advisor.recipe.settings import SECTION, Settings

word = st.text(string.ascii_lowercase + string.digits + "_", max_size=8)
name = st.builds(lambda first, rest: first + rest, st.sampled_from(string.ascii_lowercase), word)
keys = st.lists(name, min_size=2, max_size=3).map(".".join)
words = st.sampled_from(["true", "1", "none", "", "# no comment", "yes", "1e-05", "~"])  # that YAML reads as others
values = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | words
settings_of_any_kind = st.dictionaries(keys, values, max_size=6).map(Settings)


def typed(settings):
    return {key: (type(value), value) for key, value in settings.items()}


# --- YAML -----------------------------------------------------------------------------------------------------


@limits(deadline=None)  # the first call imports YAML
@given(settings_of_any_kind)
def test_yaml_gives_the_same_settings_back(settings):
    assert typed(Settings.from_yaml(settings.to_yaml())) == typed(settings)


@given(settings_of_any_kind)
def test_a_section_of_a_config_gives_the_same_settings(settings):
    config = dumped({"epochs": 3, SECTION: dict(settings), "data": {"folder": "images"}})
    assert typed(Settings.from_yaml(config)) == typed(settings)


@pytest.mark.parametrize("text", ["", "{}", "# only a comment\n", "perf_advisor:\n", "perf_advisor: {}\nepochs: 3\n"])
def test_no_settings(text):
    assert Settings.from_yaml(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        "epochs: 3",
        "precision.autocast: bfloat16\nepochs: 3",
        "Precision.autocast: x",
        "1: x",
        "precision.autocast: [bfloat16]",
        "precision.autocast:",
        "- precision.autocast",
        "perf_advisor: bfloat16",
        "perf_advisor:\n  epochs: 3",
        "precision.autocast: !!python/object/apply:os.system ['true']",
    ],
)
def test_a_file_can_set_settings_and_nothing_else(text):
    with pytest.raises(UsageError) as error:
        Settings.from_yaml(text, "tuned.yaml")
    assert error.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "a.b: [",
        "a.b: 1\n\tc.d: 2",
        "a.b: 1\n---\na.c: 2",
        "a.b: *unknown",
        "a.b: 2024-99-99",
        "a.b: 0b_",
        "a.b: " + "9" * 5000,
        "[" * 800,
        "a.b: \x00",
    ],
    ids=["flow", "tab", "documents", "alias", "date", "binary", "digits", "nesting", "control"],
)
def test_what_is_not_yaml_is_named_with_its_source(text):
    with pytest.raises(UsageError, match=r"tuned\.yaml is not valid YAML") as error:
        Settings.from_yaml(text, "tuned.yaml")
    assert "\n" not in error.value.message


# --- files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_with_a_byte_order_mark_and_without(tmp_path, mark):
    path = tmp_path / "tuned.yaml"
    path.write_text(f"{mark}step.cuda_graph: true\n", encoding="utf-8")
    assert Settings.from_file(path) == {"step.cuda_graph": True}


def test_files_that_cannot_be_read(tmp_path):
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing.yaml", tmp_path, binary):
        with pytest.raises(UsageError, match="cannot be read") as error:
            read_text(path)
        assert str(path) in error.value.message


# --- the mapping ----------------------------------------------------------------------------------------------


@given(settings_of_any_kind, keys, values)
def test_changing_settings_makes_new_ones(settings, key, value):
    before = dict(settings)
    changed = settings.with_value(key, value)
    assert changed[key] == value
    assert dict(settings) == before
    assert changed.without(key) == settings.without(key)
    assert changed.without("no.such_key") == changed


@given(settings_of_any_kind, settings_of_any_kind)
def test_merging_lets_the_others_win(settings, other):
    assert settings.merged(other) == settings.merged(dict(other)) == {**settings, **other}


@given(settings_of_any_kind)
def test_settings_are_ordered_by_key_and_equal_whatever_the_order(settings):
    assert list(settings) == sorted(settings)
    backwards = Settings(dict(reversed(list(settings.items()))))
    assert backwards == settings
    assert hash(backwards) == hash(settings)


def test_settings_cannot_be_changed_and_numbers_that_are_equal_make_settings_that_are():
    assert len({Settings({"a.b": True}), Settings({"a.b": 1}), Settings({"a.b": 1.0})}) == 1
    settings = Settings({"a.b": 1})
    with pytest.raises(TypeError):
        settings["a.b"] = 2


def test_tables_of_a_toml_section_are_keys_with_dots():
    text = '[perf_advisor]\nprecision.autocast = "bfloat16"\n[perf_advisor.compile]\nmode = "default"\n'
    assert dict(Settings.from_yaml(text, "pyproject.toml")) == {
        "compile.mode": "default",
        "precision.autocast": "bfloat16",
    }


def test_a_key_that_is_none_among_settings_is_named():
    with pytest.raises(UsageError, match="'epochs' is not a setting key"):
        Settings.from_yaml("precision.autocast: bfloat16\nepochs: 3\n", "tuned.yaml")
    with pytest.raises(UsageError, match="holds no settings"):
        Settings.from_yaml("epochs: 3\n", "train.yaml")


def test_a_setting_that_stands_twice_is_refused_and_a_config_of_another_program_is_not():
    with pytest.raises(UsageError, match=r"'compile\.mode' stands there twice") as error:
        Settings.from_yaml("compile.mode: default\ncompile.mode: none\n", "tuned.yaml")
    assert "line 2" in error.value.message
    config = "epochs: 1\nepochs: 2\nperf_advisor:\n  compile.mode: default\n"
    assert Settings.from_yaml(config) == {"compile.mode": "default"}
    with pytest.raises(UsageError, match=r"'compile\.mode' stands there twice"):
        Settings.from_yaml(config + "  compile.mode: none\n")
    in_json = '{"epochs": 1, "epochs": 2, "perf_advisor": {"compile.mode": "default"%s}}'
    assert Settings.from_yaml(in_json % "", "train.json") == {"compile.mode": "default"}
    with pytest.raises(UsageError, match=r"'compile\.mode' stands there twice"):
        Settings.from_yaml(in_json % ', "compile.mode": "none"', "train.json")
    with pytest.raises(UsageError, match=r"'perf_advisor' stands there twice"):
        Settings.from_yaml(f"{config}perf_advisor:\n  compile.mode: none\n")
