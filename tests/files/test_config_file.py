"""Reading a project's config file, and the errors for a file that cannot be read."""

import pytest

from advisor.errors import UsageError
from advisor.files.config_file import parsed, read_config


@pytest.mark.parametrize(
    ("name", "text", "message", "hint"),
    [
        ("config.yaml", "- 1\n- 2\n", "holds a list, not a mapping", "name: value"),
        ("config.yaml", "a: [1\n", "is not valid YAML", "Fix"),
        ("config.yaml", "a: !!python/object:os.system x\n", "is not valid YAML", "Fix"),
        pytest.param("config.yaml", "[" * 1000, "is not valid YAML", "Fix", id="deep"),
        ("config.yaml", "\udcff\x00", "cannot be read", ""),  # no text
        ("config.json", '{\n  "a" 1\n}', "is not valid JSON: Expecting ':' delimiter: line 2", "Fix"),
        ("config.json", '{\n  // old\n  "a": 1\n}', "is not valid JSON", "JSON has no comments"),
        ("config.jsonc", '{ // "a": 2\n  "a": 1\n}', "config.jsonc is not valid", ""),
        ("config.ini", "[train]\na = 1\n", "is not valid YAML", "YAML, JSON or TOML"),
        ("train.gin", "import models\ntrain.batch_size = 32\n", "holds a str, not a mapping", "name: value"),
    ],
)
def test_a_config_that_cannot_be_read_is_told_in_the_words_of_its_format(name, text, message, hint, tmp_path):
    path = tmp_path / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as caught:
        read_config(str(path))
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_an_empty_config_is_an_empty_mapping(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("")
    assert read_config(str(path)) == {}


@pytest.mark.parametrize(
    ("word", "problem"),
    [("!!bool maybe", "'maybe' cannot be read as bool"), ("!!timestamp soon", "'soon' cannot be read as timestamp")],
)
def test_a_word_that_is_not_of_its_type_is_named_with_its_line(word, problem):
    with pytest.raises(UsageError, match=f"c.yaml is not valid YAML: line 2: {problem}"):
        parsed(f"x: 1\na: {word}\n", "c.yaml")
