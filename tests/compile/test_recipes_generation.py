"""A static cache for generation: the same tokens, greedily, from an eager and from a compiled forward pass."""

import pytest
import torch
from facts import cpu_facts
from proposals import CATALOG

from advisor.errors import TargetError
from advisor.experiment.judging.numerics import distance
from advisor.portable.generation import cache_of
from advisor.portable.plan import StepPlan
from advisor.recipe import Components
from advisor.records import Mode, Skip, TargetSpec
from advisor.target.entrypoint import load_target
from advisor.trial.inspection import inspect_loop
from advisor.trial.measurement.probe import sample_of

GPT2 = ("n_layer=1", "n_embd=16", "n_head=2", "vocab_size=64", "n_positions=24")
T5 = ("num_layers=1", "num_decoder_layers=1", "d_model=16", "num_heads=2", "d_kv=8", "d_ff=32", "vocab_size=64")
RECIPE = CATALOG["generation_cache"]


@pytest.fixture(autouse=True)
def transformers():
    return pytest.importorskip("transformers")


def loop_of(target, *options, **spec):
    torch.manual_seed(0)
    return load_target(TargetSpec(target, ".", device="cpu", arguments=options, **spec))


def generated(loop, value):
    """The tokens of the loop's own step under a value of the recipe."""
    components = Components(loop.model, None, loop.data, StepPlan(mode=loop.mode, device="cpu"), own_step=loop.step)
    RECIPE.apply(components, value)
    with torch.no_grad():
        return loop.step(loop.data)


@pytest.mark.parametrize(("target", "options"), [("hf:gpt2", GPT2), ("hf:t5", T5)])
def test_generation_is_a_workload_whose_tokens_do_not_depend_on_the_cache(target, options):
    loop = loop_of(target, *options, "generate=6", input_shape=(2, 8))
    facts = inspect_loop(loop, torch.device("cpu"), [loop.data])
    assert (loop.mode, loop.batch_size, facts.generated_tokens) == (Mode.INFER, 2, 6)
    own = generated(loop, "dynamic")
    assert own.shape[1] == (14 if target == "hf:gpt2" else 7), "the prompt's and the new ones; those of the decoder"
    static = generated(loop, "static")
    assert cache_of(loop.model) == "static"
    assert torch.equal(own, static)
    assert distance(sample_of(static), sample_of(own)) == 0


@pytest.mark.timeout(400)
def test_the_compiled_cache_gives_the_same_tokens():
    loop = loop_of("hf:gpt2", *GPT2, "generate=6", input_shape=(2, 8))
    own = generated(loop, "dynamic")
    torch._dynamo.reset()
    compiled = generated(loop, "static_compiled")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert torch.equal(own, compiled)
    generated(loop, "dynamic")
    assert cache_of(loop.model) == "dynamic"


def test_tokens_are_compared_one_by_one():
    assert distance((9.0, 1.0, 2.0, 3.0, 4.0), (10.0, 1.0, 2.0, 3.0, 5.0)) == 0.25
    assert distance((1.5, 1.5, 2.0), (1.5, 1.5, 2.0)) == 0


def test_a_step_that_generates_nothing_has_no_candidates():
    assert isinstance(RECIPE.candidates(cpu_facts()), Skip)


@pytest.mark.parametrize(
    ("target", "options", "wrong", "what_to_do"),
    [
        ("hf:bert", ("generate=4",), "does not generate text", "hf:gpt2"),
        ("hf:gpt2", ("generate=many",), "no number of tokens", "generate=64"),
        ("hf:gpt2", ("generate=40",), "do not fit into the 24 positions", "--input 1x8"),
    ],
)
def test_what_cannot_generate_says_what_to_type(target, options, wrong, what_to_do):
    tiny = GPT2 if target == "hf:gpt2" else ("num_hidden_layers=1", "hidden_size=16", "num_attention_heads=2")
    with pytest.raises(TargetError, match=wrong) as caught:
        loop_of(target, *tiny, *options)
    assert what_to_do in caught.value.hint
