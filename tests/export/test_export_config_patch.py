import pytest
import yaml

from advisor.errors import UsageError
from advisor.export.config_patch import Patch
from advisor.export.config_patch import patched as patch_of
from advisor.export.configs.words import Wanted
from advisor.files.config_file import parsed
from advisor.recipe.settings import Settings

TUNED = {"data.batch_size": 128, "data.pin_memory": True, "precision.autocast": "bfloat16"}


def patched(text: str, settings=None, current=None, key_map=None) -> Patch:
    return patch_of(text, Wanted(TUNED if settings is None else settings, current or {}, key_map or {}))


def paths(patch: Patch) -> dict[str, str]:
    """The config's path of each setting that it contains."""
    return {key: ", ".join(".".join(entry.path) for entry in entries) for key, entries in patch.said.items()}


def test_a_real_config_changes_in_its_values_only():
    text = (
        "# ResNet-50, the run of record\n"
        "model:   {name: resnet50, classes: 1000}   # flow\n"
        "\n"
        "train:\n"
        "    batch_size:   64      # per GPU\n"
        "    pin_memory: False\n"
        "    notes: |\n"
        "      batch_size: 7 is a word here\n"
        "    lr: 1.0e-3\n"
        "...\n"
    )
    patch = patched(text)
    assert patch.text == (
        "# ResNet-50, the run of record\n"
        "model:   {name: resnet50, classes: 1000}   # flow\n"
        "\n"
        "train:\n"
        "    batch_size:   128      # per GPU\n"
        "    pin_memory: True\n"
        "    notes: |\n"
        "      batch_size: 7 is a word here\n"
        "    lr: 1.0e-3\n"
        "perf_advisor:\n"
        "  precision.autocast: bfloat16\n"
        "...\n"
    )
    assert paths(patch) == {"data.batch_size": "train.batch_size", "data.pin_memory": "train.pin_memory"}
    assert patch.added == {"precision.autocast": "bfloat16"}
    assert Settings.from_yaml(patch.text) == patch.added


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "perf_advisor:\n  a.b: 1\n"),
        ("# only a comment", "# only a comment\nperf_advisor:\n  a.b: 1"),
        ("---\n", "---\nperf_advisor:\n  a.b: 1\n"),
        ("x: 1\r\ny: 2\r\n", "x: 1\r\ny: 2\r\nperf_advisor:\r\n  a.b: 1\r\n"),
        ("\ufeffx: |\n  text", "\ufeffperf_advisor:\n  a.b: 1\nx: |\n  text"),
        ("  x: 1\n  y: 2\n", "  x: 1\n  y: 2\n  perf_advisor:\n    a.b: 1\n"),
        ("x:\n- 1\n- >\n  text", "perf_advisor:\n  a.b: 1\nx:\n- 1\n- >\n  text"),
        ("{ }  # c", "{ perf_advisor: {a.b: 1}}  # c"),
        ("{x: 1, y: [2, 3]}\n", "{x: 1, y: [2, 3], perf_advisor: {a.b: 1}}\n"),
        ("{x}", "{x, perf_advisor: {a.b: 1}}"),
        ("{x: 1,\n # c\n}", "{x: 1, perf_advisor: {a.b: 1}\n # c\n}"),
        ("x: 1\nperf_advisor:\n", "x: 1\nperf_advisor:\n  a.b: 1\n"),
        ("perf_advisor: # soon\nx: 1", "perf_advisor: # soon\n  a.b: 1\nx: 1"),
        ("perf_advisor:", "perf_advisor:\n  a.b: 1"),
        ("perf_advisor: ~ # soon\n", "perf_advisor: {a.b: 1} # soon\n"),
        ("perf_advisor: {c.d: on}\nx: 1\n", "perf_advisor: {c.d: on, a.b: 1}\nx: 1\n"),
        ("perf_advisor:\n  c.d: 2 # kept\n\nx: 1\n", "perf_advisor:\n  c.d: 2 # kept\n  a.b: 1\n\nx: 1\n"),
        ("perf_advisor:\n  a.b: 9 # was\nx: 1\n", "perf_advisor:\n  a.b: 1 # was\nx: 1\n"),
        (
            "x: 1\nperf_advisor:\n  c.d: |-\n    off\ny: 2\n",
            "x: 1\nperf_advisor:\n  a.b: 1\n  c.d: |-\n    off\ny: 2\n",
        ),
        ("? x\n: 1\n", "? x\n: 1\nperf_advisor:\n  a.b: 1\n"),
    ],
)
def test_the_section(text, expected):
    patch = patched(text, {"a.b": 1})
    assert patch.text == expected
    assert patch.added == {"a.b": 1}
    assert yaml.safe_load(patch.text)["perf_advisor"]["a.b"] == 1


def test_a_setting_of_the_section_is_changed_there_and_not_in_a_value_of_its_name():
    text = "perf_advisor: {data.batch_size: 64}\ntrain: {batch_size: 32}\n"
    assert patched(text, {"data.batch_size": 128}).text == text.replace("64", "128")


def test_a_word_is_replaced_only_where_the_config_says_the_same_word():
    text = "compiler:\n  mode: none\nrun: fast\n"
    same = patched(text, {"compile.mode": "default"}, {"compile.mode": "none"})
    assert paths(same) == {"compile.mode": "compiler.mode"}
    other = patched(text.replace("none", "train"), {"compile.mode": "default"}, {"compile.mode": "none"})
    assert paths(other) == {}
    assert "mode: train\n" in other.text


def test_several_values_of_one_name_are_proposed():
    patch = patched("first: {batch_size: 64}\nsecond: {batch_size: 16}\n", {"data.batch_size": 128})
    (remark,) = patch.remarks
    assert "first.batch_size or second.batch_size" in remark
    assert "--map data.batch_size=" in remark


def test_two_settings_of_one_name_take_nobodys_value():
    patch = patched("size: 1\n", {"a.size": 2, "b.size": 3})
    assert paths(patch) == {}
    assert yaml.safe_load(patch.text) == {"size": 1, "perf_advisor": {"a.size": 2, "b.size": 3}}


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        ("'none'", "bfloat16", "'bfloat16'"),
        ("'none'", "it's", "'it''s'"),
        ("none", "a: b", '"a: b"'),
        ("none", "yes", '"yes"'),
        ("none", "", '""'),
        ("none", "a, b]", '"a, b]"'),
        ("yes", False, "no"),
        ("Off", True, "On"),
        ("16", 1e-5, "1.0e-05"),
        ("", 2, " 2"),
    ],
)
def test_the_style_of_the_replaced_value_is_kept(old, value, new):
    text = f"x:\n  key:{' ' if old else ''}{old} # c\n  z: 1\n"
    patch = patched(text, {"k.v": value}, key_map={"k.v": "x.key"})
    assert patch.text == f"x:\n  key:{' ' if old else ''}{new} # c\n  z: 1\n"
    assert yaml.safe_load(patch.text)["x"]["key"] == value
    assert paths(patch) == {"k.v": "x.key"}


def test_a_map_reaches_into_lists_and_dotted_keys():
    text = "stages:\n- {n: 1}\n- {n: 2}\na.b: 3\n"
    assert patched(text, {"k.v": 5}, key_map={"k.v": "stages.0.n"}).text == text.replace("n: 1", "n: 5")
    assert patched(text, {"k.v": 5}, key_map={"k.v": "a.b"}).text == text.replace("a.b: 3", "a.b: 5")
    assert patched(text, {"k.v": 5}, key_map={"k.v": "stages[1].n"}).text == text.replace("n: 2", "n: 5")
    assert patched(text, {}, key_map={"k.v": "nowhere"}).text == text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        *((path, "no single value") for path in ("train.bs", "bs", "train.stages.7", "train.batch.size", "train")),
        ("base.n", "line 4"),
    ],
)
def test_a_map_that_leads_to_no_value_is_refused(path, message):
    text = "train:\n  batch: 1\n  stages: [1, 2]\nbase: &b {n: 1}\ncopy: *b\n"
    with pytest.raises(UsageError) as caught:
        patched(text, {"k.v": 5}, key_map={"k.v": path})
    assert message in caught.value.message
    assert path in caught.value.message
    assert "stages[0]" in caught.value.hint


@pytest.mark.parametrize("text", ["perf_advisor: {k.v: }", "perf_advisor:\n  k.v:", "{perf_advisor: {k.v: }}"])
def test_an_empty_value_is_filled_before_others_follow(text):
    assert yaml.safe_load(patched(text, {"k.v": 1, "k.w": 2}).text) == {"perf_advisor": {"k.v": 1, "k.w": 2}}


def test_two_maps_to_one_value_are_refused():
    with pytest.raises(UsageError, match="several settings the same entry"):
        patched("n: 1\n", {"a.x": 3, "b.y": 2}, key_map={"a.x": "n", "b.y": "n"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "line 3"),
        ("a: 1\n\tb: 2\n", "line 2"),
        ("a: *nowhere\n", "undefined alias"),
        ("- 1\n- 2\n", "a list at its top level \\(line 1\\)"),
        ("a: 1\n---\nb: 2\n", "found another document"),
        ("perf_advisor: [1]\n", "is a list, not a mapping"),
        ("x: &x {a.b: 1}\nperf_advisor: *x\n", "shared through an anchor"),
        ("perf_advisor: {k.v: [1]}\n", "is a list, not a value"),
        ("!settings\na: 1\n", "has a tag"),
        ("? perf_advisor\n:  c.d: >-\n    e\n", "ends in a block of text"),
    ],
)
def test_what_cannot_be_patched_says_why(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        patched(text, {"k.v": 1})
    assert caught.value.hint


def test_tags_that_the_safe_loader_refuses_are_left_alone():
    text = "secret: !vault abc\nwhen: 2024-99-99\ntrain:\n  batch_size: 64\n"
    assert patched(text, {"data.batch_size": 128}).text == text.replace("64", "128")


def test_a_recursive_config_is_no_trap():
    text = "a: &a\n  self: *a\n  batch_size: 64\n"
    with pytest.raises(UsageError, match="cannot be changed in the text"):
        patched(text, {"data.batch_size": 128})


WORKERS = {"data.num_workers": 4, "data.persistent_workers": True}


def test_options_of_workers_go_where_the_workers_go():
    """A loader without workers refuses both of their options."""
    text = "train: {num_workers: 0, persistent_workers: false}\nother: {num_workers: 0}\n"
    patch = patch_of(text, Wanted(WORKERS))
    assert yaml.safe_load(patch.text)["train"] == {"num_workers": 0, "persistent_workers": False}
    assert patch.added == WORKERS
    alone = patch_of(text.partition("\n")[0], Wanted(WORKERS))
    assert yaml.safe_load(alone.text)["train"] == {"num_workers": 4, "persistent_workers": True}


def test_a_map_is_followed_whatever_stands_in_the_section_and_wherever_the_workers_are():
    text = "perf_advisor: {data.num_workers: 1}\njobs: 0\npw: false\n"
    settings = {"data.persistent_workers": True, "data.num_workers": 4}
    patch = patched(text, settings, key_map={"data.persistent_workers": "pw", "data.num_workers": "jobs"})
    assert patch.text == text.replace("jobs: 0", "jobs: 4").replace("false", "true")


@pytest.mark.parametrize(("text", "end"), [("[a]\r\nb = 1\r\n", "\r\n"), ("[a]\nb = 1\r\n", "\n"), ("", "\n")])
def test_lines_that_are_added_to_toml_end_as_the_others(text, end):
    patch = patch_of(text, Wanted({"x.y": 2}), name="config.toml")
    assert patch.text.startswith(text)
    added = patch.text.removeprefix(text)
    assert added.count("\n") == added.count(end) > 0
    assert added.count("\r\n") == (0 if end == "\n" else added.count("\n"))


@pytest.mark.parametrize("name", ["config.yaml", "config.toml"])
def test_a_config_without_workers_keeps_none_of_their_options(name):
    text = "num_workers = 4\npersistent_workers = true\nprefetch_factor = 4\n"
    text = text if name.endswith("toml") else text.replace(" =", ":")
    patch = patch_of(text, Wanted({"data.num_workers": 0, "data.persistent_workers": False}), name=name)
    loaded = {"prefetch_factor": None, **parsed(patch.text, name)}
    assert loaded == {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None}
    assert [str(entry) for entry in patch.said["data.prefetch_factor"]] == ["prefetch_factor: null"]
