"""Many random inputs for the code that reads and patches configs: every failure is an AdvisorError of two lines."""

import contextlib
import json
from pathlib import Path

import msgspec
import pytest
import yaml
from fuzzed import MANY, fuzz
from hypothesis import strategies as st
from project_configs import CONFIGS

from advisor.errors import AdvisorError
from advisor.export.config_patch import check_key_map, patched
from advisor.export.configs.words import Wanted
from advisor.files.config_file import read_config
from advisor.recipe.settings import Settings
from advisor.records import ConfigKind

# What YAML, JSON and TOML are made of, and what their readers have stumbled over.
_PIECES = (
    *"{}[],:-?!&*|>%@`'\"#=.~\\ \n\t\r²٣\x00\x85\u2028\ufeffé",
    *("\n  ", "\n- ", ": ", " #c", "---\n", "...\n", "\r\n", "<<: *a", "&a ", "*a", "? ", "perf_advisor:", "a.b: 1\n"),
    *("!!int ", "!!float ", "!!bool ", "!!null ", "!!timestamp ", "!!binary ", "!!set ", "!!omap ", "!!pairs "),
    *("!!python/tuple ", "!!python/name:os.system ", "!include ", "!!str ", "!!map ", "!!seq ", "!!value ", "!!merge "),
    *("true", "no", "null", "1e-3", "0x", "0b_", "0o8", "_", ".inf", ".nan", "1:2:3", "2024-99-99", "-", "+", "1_0"),
    *("2001-12-14t21:59:43", "99999999999999999999", "precision.autocast: bfloat16\n", "data.num_workers: 2\n", "a:\n"),
    *("b: {", '[perf_advisor]\n"a.b" = 1\n', "[[a]]\n", "[a.b]\n", "x = ", "'''", '"""', "${a.b}", "num_workers: 0\n"),
    *("bf16: true\n", "trainer:\n  precision: 32\n", "defaults:\n- _self_\n", "_target_: torch.optim.SGD\n", "x.²"),
)
TEXTS = st.lists(st.sampled_from(_PIECES), max_size=14).map("".join) | st.text(max_size=40)
WHOLE = st.sampled_from([path.read_bytes().decode() for path in CONFIGS.values()])
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3) | st.dates()
)
TREES = st.dictionaries(
    st.sampled_from(
        ["a", "trainer", "data", "precision", "num_workers", "bf16", "_target_", "perf_advisor", "0", "a.b"]
    ),
    st.recursive(
        VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_size=5,
)
NAMES = st.sampled_from(["c.yaml", "c.json", "c.toml", "c"])
PATHS = st.lists(
    st.sampled_from(["a", "b", "0", "1", "²", "٣", "[0]", "[²]", "", "data", "99999999999999999999"]), max_size=4
)
FEW = {
    "precision.autocast": "bfloat16",
    "compile.mode": "default",
    "data.num_workers": 2,
    "optimizer.implementation": "fused",
}

EXAMPLES = pytest.mark.parametrize(
    "examples", [200, pytest.param(MANY, marks=[pytest.mark.fuzz, pytest.mark.timeout(3600)])]
)


@st.composite
def mutated(draw) -> str:
    """A real config with some of its text taken out, repeated or replaced."""
    text = draw(WHOLE)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        text = text[:start] + draw(st.sampled_from(_PIECES) | st.just(text[start:end] * 2)) + text[end:]
    return text


@st.composite
def texts(draw) -> str:
    """Pieces, mutated configs, and whole trees."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(TEXTS)
    if kind == 1:
        return draw(mutated())
    tree = draw(TREES)
    return yaml.safe_dump(tree) if kind == 2 else json.dumps(tree, default=str)


@EXAMPLES
def test_settings_files(examples):
    def check(given):
        text, name = given
        with contextlib.suppress(AdvisorError):
            assert Settings.from_yaml(text, name) is not None

    fuzz(examples, st.tuples(texts(), NAMES), check)


@EXAMPLES
def test_config_files(examples, tmp_path):
    def check(given):
        text, name = given
        path = Path(tmp_path, name)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with contextlib.suppress(AdvisorError):
            config = read_config(str(path))
            assert json.dumps(msgspec.to_builtins(config))  # a session's journal holds it

    fuzz(examples, st.tuples(texts(), NAMES), check)


@EXAMPLES
def test_patches(examples):
    def check(given):
        text, name, kind, paths = given
        with contextlib.suppress(AdvisorError):
            check_key_map(text, {"data.batch_size": ".".join(paths)}, name)
        with contextlib.suppress(AdvisorError):
            patch = patched(text, Wanted(FEW), name=name, kind=kind)
            assert set(patch.said) | set(patch.added) | set(patch.rest) >= set(FEW)
            if name != "c.toml":
                assert patched(patch.text, Wanted(FEW, FEW), name=name, kind=patch.kind).text == patch.text

    fuzz(examples, st.tuples(texts(), NAMES, st.none() | st.sampled_from(list(ConfigKind)), PATHS), check)


@EXAMPLES
def test_maps(examples):
    def check(given):
        text, path = given
        with contextlib.suppress(AdvisorError):
            patched(text, Wanted(FEW, key_map={"data.num_workers": path, "compile.mode": path + ".x"}))

    fuzz(examples, st.tuples(mutated() | TEXTS, PATHS.map(".".join) | st.text(max_size=6)), check)
