"""The recipe that has Hugging Face decoders keep no keys and values while they train, on small real ones."""

import pytest
import torch
from model_structures import applied, every_way

from advisor.inlined.blocks import blocks_to_compile
from advisor.inlined.training_cache import decoders
from advisor.recipe.plan import StepPlan
from advisor.step.compile import compile_in_place
from advisor.step.step import TrainStep
from advisor.trial.measurement.probe import probe_training

IDS = torch.arange(16).reshape(2, 8) + 3


def made(name, **config):
    kind = getattr(pytest.importorskip("transformers"), name)
    return kind(kind.config_class(vocab_size=32, **config))


def gpt2():
    return made("GPT2LMHeadModel", n_embd=8, n_layer=4, n_head=2)


def t5():
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 4, "num_heads": 2}
    return made("T5ForConditionalGeneration", **sizes, decoder_start_token_id=0)


def trained(model):
    """The loss of a training step, what it returned to go on from, and its gradients."""
    torch.manual_seed(3)  # dropout
    out = model.train()(input_ids=IDS, labels=IDS)
    out.loss.backward()
    kept = getattr(out, "past_key_values", None)
    return out.loss.item(), kept, [p.grad for p in model.parameters() if p.grad is not None]


def same_model_twice(make):
    torch.manual_seed(0)
    model = make()
    other = make()
    other.load_state_dict(model.state_dict())
    return model, other


@every_way
@pytest.mark.parametrize("make", [gpt2, t5])
def test_a_decoder_trains_the_same_and_keeps_nothing(make, way):
    model, other = same_model_twice(make)
    loss, kept, gradients = trained(model)
    assert kept is not None
    way("training_cache", False, other)
    same, none_kept, same_gradients = trained(other)
    assert none_kept is None
    assert same == loss
    torch.testing.assert_close(same_gradients, gradients, rtol=0, atol=0)


@pytest.mark.parametrize("make", [gpt2, t5])
def test_the_outputs_that_a_trial_compares_hold_no_cache(make):
    samples = []
    for model in same_model_twice(make):
        if samples:
            applied("training_cache", False, model)
        optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
        step = TrainStep(model, optimizer, None, StepPlan(mode="train", device="cpu"))
        samples.append(probe_training(step, [{"input_ids": IDS, "labels": IDS}] * 2, seed=0).outputs)
    assert samples[0] == samples[1] != ()


def test_generation_goes_on_keeping_keys_and_values():
    model, other = same_model_twice(gpt2)
    applied("training_cache", False, other)
    options = {"max_new_tokens": 2, "do_sample": False, "return_dict_in_generate": True, "pad_token_id": 0}
    expected, found = (each.eval().generate(IDS, **options) for each in (model, other))
    assert found.past_key_values is not None
    assert torch.equal(found.sequences, expected.sequences)


def test_an_encoder_keeps_nothing_whatever_its_configuration_says():
    model = made("BertForMaskedLM", hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    assert model.config.use_cache
    assert not decoders(model)


@pytest.mark.compile
def test_blocks_that_keep_nothing_are_compiled_once_for_all():
    graphs = {}
    for kept in (True, False):
        model, compiled = gpt2(), []

        def backend(graph, _, compiled=compiled):
            compiled.append(graph)
            return graph.forward

        if not kept:
            applied("training_cache", False, model)
        torch._dynamo.reset()
        for block in blocks_to_compile(model):
            compile_in_place(block, backend=backend)
        trained(model)
        graphs[kept] = len(compiled)
    assert graphs[False] == 1
    assert graphs[True] > 1
