"""A project's config file as it is read, and how one that cannot be read is told."""

import pytest

from advisor.errors import UsageError
from advisor.files.config_file import read_config


@pytest.mark.parametrize(
    "text",
    [
        "- 1\n- 2\n",
        "just words",
        "1: 2\n",
        "a: [1\n",
        "a: !!python/object:os.system x\n",
        "a: 2024-99-99\n",
        pytest.param("[" * 1000, id="deep"),
    ],
)
def test_a_config_that_is_no_mapping_is_refused(text, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_config(str(path))
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_config_with_a_key_that_is_no_name_is_refused_by_that_key(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("lr: 1\non: 2\n")
    with pytest.raises(UsageError, match="the key True \\(bool\\)") as caught:
        read_config(str(path))
    assert "quotes" in caught.value.hint


def test_a_config_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(str(path))


@pytest.mark.parametrize(
    ("name", "text", "message", "hint"),
    [
        ("config.json", '{\n  // old\n  "a" 1\n}', "is not valid JSON: Expecting ':' delimiter: line 3", "Fix"),
        ("config.ini", "[train]\na = 1\n", "is not valid YAML", "YAML, JSON or TOML"),
        ("train.gin", "import models\ntrain.batch_size = 32\n", "holds a str, not a mapping", "name: value"),
        ("snli.jsonnet", 'local m = "bert";\n{trainer: {a: 1}}\n', "snli.jsonnet", ""),
        ("config.py", "model = dict(\n  depth=50)\n", "holds a str, not a mapping", "name: value"),
        ("config.yaml", "a: [1\n", "is not valid YAML", "Fix"),
    ],
)
def test_a_config_that_cannot_be_read_is_told_in_the_words_of_its_format(name, text, message, hint, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_config(str(path))
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("name", ["config.json", "config.jsonc"])
def test_a_config_of_json_may_have_comments(name, tmp_path):
    path = tmp_path / name
    path.write_text('{ // "a": 2\n  "a": "//1", /* ,} */\n  "b": [",]", 1,],\n}\n')
    assert read_config(str(path)) == {"a": "//1", "b": [",]", 1]}


def test_an_empty_config_is_an_empty_mapping(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("")
    assert read_config(str(path)) == {}
