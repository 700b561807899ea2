"""The guess at a first compilation, against what compilations took on an H200's host."""

from dataclasses import replace

import pytest
from facts import cpu_facts, gpu_facts, host

from advisor.experiment.measuring.budget import expected_compile_s
from advisor.records import Hardware

# Operations of the forward pass, shapes of parameters, and the seconds from the uncompiled to the compiled stack, less
# the three of an ordinary trial. Sessions on an H200's host (16 cores of a Xeon), torch 2.11.
TOOK = {
    "T5-small": (1256, 6, 49),
    "GPT-2": (674, 9, 27),
    "Llama, 8 layers": (559, 5, 26),
    "Whisper, 4 layers": (518, 10, 26),
    "ViT-S": (336, 12, 24),
    "ConvNeXt-tiny": (314, 24, 34),
    "MobileNetV3": (190, 63, 65),
    "FCN on ResNet-50": (179, 29, 35),
    "ResNet-50": (178, 28, 35),
    "diffusion U-Net": (151, 23, 33),
    "ResNet-18": (72, 17, 24),
}


@pytest.mark.parametrize(("operations", "shapes", "seconds"), TOOK.values(), ids=TOOK)
def test_the_guess_is_within_a_fifth_of_what_it_took(operations, shapes, seconds):
    facts = replace(gpu_facts(parameter_shapes=shapes), operations=operations)
    assert expected_compile_s(facts) == pytest.approx(seconds, rel=0.2)


# The same on two cores of an AMD EPYC, torch 2.14, of a first step that was compiled with its loss.
TOOK_ON_CPU = {"GPT, 4 blocks": (208, 9, 49), "MLP-Mixer, 6 blocks": (162, 10, 57), "U-Net, 3 levels": (37, 15, 56)}


@pytest.mark.parametrize(("operations", "shapes", "seconds"), TOOK_ON_CPU.values(), ids=TOOK_ON_CPU)
def test_on_a_cpu_it_takes_longer(operations, shapes, seconds):
    facts = replace(cpu_facts(parameter_shapes=shapes), operations=operations)
    assert expected_compile_s(facts) == pytest.approx(seconds, rel=0.2)


@pytest.mark.parametrize(("foreign_cores", "slower"), [(0.4, 1.0), (1.3, 1.65), (2.0, 2.0)])
def test_beside_programs_that_keep_the_cores_busy_it_takes_longer(foreign_cores, slower):
    """A session of 90 s gave 42 of them to a compilation that was not done then."""
    two_cores = host(physical_cores=2, logical_cores=2, usable_cores=2, foreign_cores=foreign_cores)
    quiet, crowded = (cpu_facts(hardware=Hardware(host=one)) for one in (host(), two_cores))
    assert expected_compile_s(crowded) == pytest.approx(slower * expected_compile_s(quiet))


def test_what_older_sessions_know_is_enough_for_a_guess():
    guesses = [expected_compile_s(gpu_facts(parameter_tensors=tensors)) for tensors in (20, 60, 160)]
    assert guesses == sorted(guesses)
    assert 5 < guesses[0] < guesses[-1] < 60
