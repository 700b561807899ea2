import importlib.metadata
import re
import sys

import pytest
from facts import cpu_facts, gpu_facts
from planted import plant, recipe_text

from advisor.errors import UsageError
from advisor.recipe import card, section_of
from advisor.recipe import catalog as catalog_module
from advisor.recipe.catalog import load_catalog
from advisor.records import Candidate, Numerics


def catalog_with(tmp_path, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    return load_catalog([str(tmp_path)])


def candidates_of(proposals, recipe_id):
    return [candidate for candidate in proposals.candidates if candidate.recipe == recipe_id]


# --- recipes of others ----------------------------------------------------------------------------------------


def test_a_folder_adds_its_recipes(tmp_path):
    catalog = catalog_with(tmp_path, mine=recipe_text("mine"))
    assert catalog.problems == ()
    assert catalog["mine"].key == "planted.mine"
    assert set(catalog.recipes) - set(load_catalog().recipes) == {"mine"}
    assert candidates_of(catalog.propose(cpu_facts()), "mine") == [Candidate("mine", "planted.mine", True)]


def test_a_recipe_has_its_files_name_and_its_cards_title_and_class_unless_it_says_others(tmp_path):
    text = recipe_text("other", numerics="EXACT").replace('    id = "other"\n', "").replace('    title = "other"\n', "")
    of_card = re.sub(r"    (numerics|default) = .*\n", "", text).replace("planted.other", "planted.changed")
    of_card = re.sub(r"(Numerics\n-+\n).*\n", r"\1changed: the test says so.\n", of_card)
    unknown = of_card.replace("changed: the", "The").replace("planted.changed", "planted.unknown")
    catalog = catalog_with(tmp_path, mine=text, changed=of_card, unknown=unknown)
    assert catalog.problems == ()
    assert catalog["mine"].title == card(catalog["mine"]).splitlines()[0] != ""
    assert [catalog[name].numerics for name in ("mine", "changed", "unknown")] == ["exact", "changed", "close"]
    assert catalog["changed"].values == (False, True)


@pytest.mark.parametrize("heading", [r"\1\n", r"\1:\n", r"\1: "])
def test_a_heading_stands_above_its_text_or_before_it(tmp_path, heading):
    underlined = recipe_text("mine")
    other = re.sub(r"^([A-Z][\w ]+)\n-+\n", heading, underlined, flags=re.MULTILINE)
    assert other != underlined
    shown = [card(catalog_with(tmp_path, mine=text)["mine"]) for text in (underlined, other)]
    assert shown[0] == shown[1]


def test_the_values_of_a_recipe_are_the_words_in_its_codes(tmp_path):
    words = 'default = "b"\n    codes = {"a": "", "b": ""}'
    catalog = catalog_with(tmp_path, mine=recipe_text("mine").replace("default = False", words))
    assert catalog["mine"].values == ("a", "b")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("raise RuntimeError('no such device')", "RuntimeError: no such device"),
        ("import sys\nsys.exit('not here')", "SystemExit: not here"),
        (recipe_text("zero_grad", key="planted.other"), "the id zero_grad is taken"),
        (recipe_text("other", key="step.zero_grad"), "step.zero_grad is owned by another recipe"),
        (recipe_text("other", key="not_a_key"), "'not_a_key' is not a setting key"),
        (recipe_text("Other"), "'Other' is not an id"),
        (recipe_text("other", card='"""Only a title"""'), "lacks What it does, Why it helps, When it does not"),
        (recipe_text("other").replace("default = False", "default = []"), "is a list"),
        (recipe_text("other").replace("Stage.MODEL", "'model'"), "no stage that is a Stage"),
        (recipe_text("other").replace("default = False", "default = 4"), "has no values"),
    ],
)
def test_a_broken_recipe_is_a_problem_and_the_others_load(tmp_path, text, problem):
    catalog = catalog_with(tmp_path, broken=text, good=recipe_text("good"))
    assert len(catalog.problems) == 1
    assert str(tmp_path / "broken.py") in catalog.problems[0]
    assert problem in catalog.problems[0]
    assert set(catalog.recipes) - set(load_catalog().recipes) == {"good"}


def test_private_files_and_abstract_classes_are_no_recipes(tmp_path):
    abstract = recipe_text("mine").replace("def code", "def other").replace("    key = ", "    name = ")
    catalog = catalog_with(tmp_path, _shared="raise RuntimeError", helpers="X = 1", abstract=abstract)
    assert catalog.problems == ()
    assert set(catalog.recipes) == set(load_catalog().recipes)


@pytest.mark.parametrize("recipe", load_catalog(), ids=lambda recipe: recipe.id)
def test_a_built_in_recipe_has_all_parts(recipe):
    assert sys.modules[type(recipe).__module__].__name__.endswith(f".{recipe.id}")
    assert recipe.default in [*recipe.values]
    for attribute in ("values", "usual", "gains"):
        assert all(map(recipe.accepts, getattr(recipe, attribute)))
    assert section_of(card(recipe), "Numerics").startswith(tuple(Numerics))


def test_files_of_one_name_in_two_folders_do_not_meet(tmp_path):
    plant(tmp_path / "a", "first").rename(tmp_path / "a" / "same.py")
    plant(tmp_path / "b", "second").rename(tmp_path / "b" / "same.py")
    catalog = load_catalog([str(tmp_path / "a"), str(tmp_path / "b")])
    assert {"first", "second"} <= set(catalog.recipes)
    assert catalog.problems == ()


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_catalog([str(tmp_path / "missing")])


def test_entry_points_add_recipes_and_problems(tmp_path, monkeypatch):
    (tmp_path / "installed_recipe.py").write_text(recipe_text("installed"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    group = catalog_module.ENTRY_POINT_GROUP
    installed = [
        importlib.metadata.EntryPoint("mine", "installed_recipe", group),
        importlib.metadata.EntryPoint("gone", "a_module_that_nobody_has:Recipe", group),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: installed)
    catalog = load_catalog()
    assert "installed" in catalog.recipes
    assert [problem.partition(":")[0] for problem in catalog.problems] == ["entry point gone"]
    sys.modules.pop("installed_recipe")


# --- what is proposed -----------------------------------------------------------------------------------------


def test_only_and_skip_leave_the_rest_out_with_a_reason():
    catalog = load_catalog()
    proposals = catalog.propose(cpu_facts(), only=("zero_grad", "fused_optimizer"), skip=("fused_optimizer",))
    assert {candidate.recipe for candidate in proposals.candidates} == {"zero_grad"}
    assert proposals.skipped["fused_optimizer"] == "left out by --skip"
    assert proposals.skipped["autocast"] == "not named by --only"
    assert {"zero_grad", *proposals.skipped} == set(catalog.recipes)


def test_what_is_on_is_measured_off_also_where_nothing_else_is_worth_trying():
    on = {"memory.allocator": "expandable_segments"}
    proposals = load_catalog().propose(gpu_facts(current=on), only=("allocator",))
    assert proposals.candidates == (Candidate("allocator", "memory.allocator", "default", already_on=True),)
    assert "allocator" in load_catalog().propose(gpu_facts(), only=("allocator",)).skipped


@pytest.mark.parametrize(
    ("candidates", "reason"),
    [
        ("return [False]", "planted.mine is false already, and there is no other value to try"),
        ("return [1 / 0]", "the recipe has a bug: ZeroDivisionError: division by zero"),
    ],
)
def test_a_recipe_without_a_value_to_try_is_skipped_and_the_others_are_not(tmp_path, candidates, reason):
    proposals = catalog_with(tmp_path, mine=recipe_text("mine", candidates=candidates)).propose(cpu_facts())
    assert proposals.skipped["mine"] == reason
    assert candidates_of(proposals, "zero_grad")


# --- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision.unknown": 1}, "no recipe owns the setting 'precision.unknown'"),
        ({"precision.autocast": "bfloat17"}, "bfloat17 is not a value that the recipe autocast knows"),
        ({"data.num_workers": True}, "true is not a value"),
    ],
)
def test_check_names_what_is_wrong(settings, message):
    with pytest.raises(UsageError, match=message) as error:
        load_catalog().check(settings)
    assert error.value.hint


def test_an_unknown_recipe_is_an_error_that_names_the_known_ones():
    with pytest.raises(UsageError, match="no recipe 'autocats'") as error:
        load_catalog()["autocats"]
    assert "autocast" in error.value.hint


def test_settings_are_applied_in_the_order_of_their_stages():
    catalog = load_catalog()
    settings = {"step.zero_grad": "none", "compile.mode": "default", "optimizer.implementation": "fused"}
    assert [recipe.id for recipe, _ in catalog.in_order(settings)] == ["fused_optimizer", "compile", "zero_grad"]


def test_only_compilation_costs():
    catalog = load_catalog()
    assert catalog.cost({"step.zero_grad": "zeros"}) == 0
    assert catalog.cost({"compile.mode": "default"}) == 1
    assert catalog.cost({"compile.mode": "max-autotune", "step.zero_grad": "zeros"}) == 4


@pytest.mark.parametrize(
    ("settings", "keeps"),
    [
        ({"precision.float32_matmul": "high"}, False),  # the compiler's cache key has the flag
        ({"backends.deterministic": True}, False),
        ({"backends.cudnn_benchmark": True}, True),
        ({"optimizer.implementation": "fused"}, True),
        ({"model.memory_format": "channels_last"}, False),
    ],
)
def test_what_decides_the_compiled_code_is_what_the_compilers_cache_looks_at(settings, keeps):
    catalog = load_catalog()
    compiled = {"compile.mode": "default"}
    same = catalog.compiled_code({**compiled, **settings}) == catalog.compiled_code(compiled)
    assert same is keeps
