"""Exported files verified: loaded in a fresh process, applied to the target's own loop, and timed in a plain loop."""

import json
from dataclasses import replace

import pytest
import torch
from report_text import html_report
from sample_session import sample_history, sample_request

from advisor.errors import AdvisorError
from advisor.experiment import events
from advisor.experiment.measuring.verification import may_be_verified, middle_block, verify
from advisor.experiment.request import Outputs
from advisor.experiment.state import SessionState
from advisor.export.outputs import write_outputs
from advisor.files.config_file import read_config
from advisor.python.file import python_source
from advisor.recipe.catalog import load_catalog
from advisor.records.kinds import Mode, Numerics, Outcome, TrialKind
from advisor.records.trials import Block, Exported, NumericsResult, TargetSpec, TrialResult, TrialSpec, Verification
from advisor.report.figures import file_finding
from advisor.runner.trials import Runner
from advisor.trial.other_loops import verified_result
from advisor.workloads.loop import Loop

VERIFIED = Verification("tuned.yaml", 1.9, 26.3, 13.8, 1.97, 12.0)
TARGET = """
import torch

def build(config):
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, config["width"])
    data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, config["width"]))
    loader = torch.utils.data.DataLoader(data, batch_size=config["batch_size"])
    return model, loader, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)
"""


def loop_of(data=None, mode=Mode.TRAIN, make_batch=None) -> Loop:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if mode is Mode.TRAIN else None
    if data is None:
        data = (torch.randn(6, 4), torch.randn(6, 4)) if mode is Mode.TRAIN else torch.randn(6, 4)
    return Loop(model, data, torch.nn.MSELoss(), optimizer, mode, batch_size=6, make_batch=make_batch)


def result_of(loop: Loop, path="", settings=None, **more) -> TrialResult:
    spec = TrialSpec("t", TargetSpec("x", "."), settings or {}, 0.05, 1.0, 30.0, "log", export_path=str(path), **more)
    return verified_result(loop, torch.device("cpu"), load_catalog(), spec)


def file_of(tmp_path, settings, mode=Mode.TRAIN):
    """The settings as both kinds of exported files."""
    yaml_file, python_file = tmp_path / "tuned.yaml", tmp_path / "tuned.py"
    yaml_file.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    python_file.write_text(python_source(load_catalog(), settings, mode))
    return yaml_file, python_file


def test_a_plain_loop_is_timed_without_and_with_a_file(tmp_path):
    plain = result_of(loop_of())
    assert plain.outcome is Outcome.MEASURED
    assert len(plain.losses) == 20
    assert {block.samples // block.steps for block in plain.blocks} == {6}
    for path in file_of(tmp_path, {"precision.autocast": "bfloat16", "step.zero_grad": "zeros"}):
        loop = loop_of()
        before = loop.model[0].weight.detach().clone()
        seen = []
        loop.model[0].register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(output.dtype))
        assert result_of(loop, path).measured
        assert set(seen) == {torch.bfloat16}
        assert not torch.equal(loop.model[0].weight, before)


def test_a_loader_is_prepared_and_read_epoch_after_epoch(tmp_path):
    data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    for path in ("", *file_of(tmp_path, {"data.batch_size": 6})):
        result = result_of(loop_of(loader), path, {"data.batch_size": 6} if path else {})
        sizes = {block.samples // block.steps for block in result.blocks}
        assert (sizes, len(result.losses)) == ({6 if path else 4}, 2), "losses of one epoch, after the first step"


def test_a_batch_of_another_size_is_made_for_the_file_alone(tmp_path):
    made = loop_of(make_batch=lambda size: (torch.randn(size, 4), torch.randn(size, 4)))
    path, _ = file_of(tmp_path, {"data.batch_size": 9})
    assert result_of(made, path, {"data.batch_size": 9}).blocks[0].samples % 9 == 0
    assert result_of(made, "", {"data.batch_size": 9}).blocks[0].samples % 6 == 0


def test_inference(tmp_path):
    for path in ("", *file_of(tmp_path, {"infer.grad": "inference_mode"}, Mode.INFER)):
        loop = loop_of(mode=Mode.INFER)
        assert result_of(loop, path).measured
        assert not loop.model.training


def test_a_file_that_cannot_be_applied_and_a_loss_that_is_not_finite_are_told(tmp_path):
    broken = tmp_path / "tuned.yaml"
    broken.write_text("epochs: 3\n")
    with pytest.raises(AdvisorError, match="holds no settings"):
        result_of(loop_of(), broken)
    with pytest.raises(AdvisorError, match="not finite"):
        result_of(loop_of((torch.full((6, 4), float("nan")), torch.zeros(6, 4))))


class OneBench:
    """The parts of a bench that a verification needs: specs, and a real runner."""

    def __init__(self, target, log):
        self.runner = Runner()
        self.target, self.log = target, log

    def spec(self, name, settings, *, kind):
        assert kind is TrialKind.VERIFY
        return TrialSpec(name, self.target, dict(settings), 1, 1, 1, self.log, kind=kind)


@pytest.mark.process
def test_a_file_is_verified_in_processes_of_its_own(tmp_path):
    (tmp_path / "target.py").write_text(TARGET)
    patched = tmp_path / "patched.yaml"
    patched.write_text("width: 8\nbatch_size: 16\nperf_advisor:\n  step.zero_grad: zeros\n")
    found = SessionState.of(sample_history()).stack
    stack = replace(found, result=replace(found.result, warmup_s=100.0))  # time for a loaded machine
    Runner.prepare()
    target = TargetSpec("target.py:build", str(tmp_path), device="cpu", config={"width": 8, "batch_size": 8})
    bench = OneBench(target, str(tmp_path / "log"))
    found = verify(bench, Exported(str(patched), read_config(str(patched))), replace(stack, settings={}))
    assert not found.problem
    assert found.plain_step_ms > 0
    assert found.tuned_step_ms > 0
    per_sample = (found.plain_step_ms / 8) / (found.tuned_step_ms / 16)  # the patched config doubles the batch
    assert found.speedup == pytest.approx(per_sample, rel=0.5)
    patched.write_text("nothing: here\n")
    found = verify(bench, Exported(str(patched)), stack)
    assert found.speedup is None
    assert found.problem.startswith("the loop with the file: ")


# Small steps, bound by the host's launches.
LAYERS = """
import torch

def build():
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    batch = (torch.randn(32, 64), torch.randn(32, 64))
    return model, batch, torch.nn.MSELoss(), torch.optim.AdamW(model.parameters())
"""


@pytest.mark.gpu
def test_a_captured_step_is_verified_to_be_faster(tmp_path):
    (tmp_path / "target.py").write_text(LAYERS)
    settings = {"step.cuda_graph": True, "optimizer.implementation": "fused"}
    exported = tmp_path / "tuned.yaml"
    exported.write_text("step.cuda_graph: true\noptimizer.implementation: fused\n")
    Runner.prepare()
    bench = OneBench(TargetSpec("target.py:build", str(tmp_path)), str(tmp_path / "log"))
    found = verify(bench, Exported(str(exported)), replace(confirmed().stack, settings=settings))
    assert not found.problem
    assert found.speedup > 1.5
    assert found.tuned_step_ms < found.plain_step_ms


class Recorded(OneBench):
    """A bench whose runs are results with these outputs and losses, without the file and with it."""

    def __init__(self, plain, tuned, losses=((), ()), rounded=None):
        self.outputs = {"": plain, "model.pt2": tuned}
        self.losses = dict(zip(self.outputs, losses, strict=True))
        self.rounded = rounded
        self.runner, self.target, self.log = self, TargetSpec("t.py:build", "."), "log"

    def run(self, spec, listen):
        outputs, losses = self.outputs[spec.export_path], self.losses[spec.export_path]
        losses = self.rounded if spec.rounded and self.rounded else losses
        return TrialResult(Outcome.MEASURED, blocks=(Block(1, 8, 0.1),), outputs=outputs, losses=losses)


@pytest.mark.parametrize(("tuned", "difference", "verified"), [(1.01, 0.01, True), (1.2, 0.2, False)])
def test_outputs_of_another_model_are_not_verified(tuned, difference, verified):
    plain = (3.0, 1.0, 2.0)
    bench = Recorded(plain, tuple(tuned * value for value in plain))
    found = verify(bench, Exported("model.pt2"), replace(confirmed().stack, numerics=None))
    assert found.difference == pytest.approx(difference)
    assert bool(found.speedup) is verified
    confirmed_by_it, words = file_finding(SessionState(), found)
    assert confirmed_by_it is verified
    assert ("outputs within 1.00 %" if verified else "differ by 20.0 %") in words


ALIKE = (1.0,) * 20


@pytest.mark.parametrize(
    ("tuned", "measured", "difference"),
    [
        ((1.02,) * 20, Numerics.CLOSE, None),
        ((1.02,) * 20, Numerics.EXACT, "2.0 %"),
        ((1.0,) * 7 + (1.2,) * 13, Numerics.CLOSE, "13.0 %"),  # as of draws or weights that stand still
        ((1.0,) * 4 + (1.3,) + (1.0,) * 15, Numerics.CLOSE, "30.0 %"),
        ((1.0,) * 10 + (1.3,) + (1.0,) * 9, Numerics.CLOSE, None),
    ],
)
def test_losses_of_twenty_steps_agree_as_the_class_of_the_settings_says(tuned, measured, difference):
    stack = confirmed().stack
    numerics = NumericsResult(measured, measured, 0.0, "")
    found = verify(Recorded((1.0,), (1.0,), (ALIKE, tuned)), Exported("model.pt2"), replace(stack, numerics=numerics))
    assert found.problem == (f"its losses differ by {difference} from the loop without the file" if difference else "")
    assert verify(Recorded((1.0, 2.0), (1.0, 3.0), (ALIKE, tuned)), Exported("model.pt2"), stack).difference is None
    drawn = replace(stack, numerics=replace(numerics, another_draw=0.31))  # by dropout in other kernels
    assert not verify(Recorded((1.0,), (1.0,), (ALIKE, tuned)), Exported("model.pt2"), drawn).problem


def test_losses_that_rounding_alone_changes_more_are_verified():
    stack, close = confirmed().stack, NumericsResult(Numerics.CLOSE, Numerics.CLOSE, 0.0, "")
    runs = (1.0,), (1.0,), (ALIKE, (1.0,) * 10 + (1.13,) * 10), (1.0,) * 10 + (1.1,) * 10
    assert not verify(Recorded(*runs), Exported("model.pt2"), replace(stack, numerics=close)).problem
    exact = replace(close, measured=Numerics.EXACT, declared=Numerics.EXACT)
    assert verify(Recorded(*runs), Exported("model.pt2"), replace(stack, numerics=exact)).problem
    plain, rounded = (result_of(loop_of(), rounded=one).losses for one in (False, True))
    assert 0 < max(abs(a - b) / b for a, b in zip(rounded, plain, strict=True)) < 0.02


def test_the_figures_of_a_loop_of_two_speeds_agree():
    """The means of two middle blocks would give 41 ms and 2 ms a step, and 1.9x."""
    blocks = {False: (Block(1, 8, 0.080), Block(1, 8, 0.002)), True: (Block(1, 8, 0.002),) * 2}
    pair = {tuned: TrialResult(Outcome.MEASURED, blocks=of) for tuned, of in blocks.items()}
    plain, tuned = (middle_block([pair[which]]) for which in (False, True))
    assert tuned.samples_per_s / plain.samples_per_s == pytest.approx(plain.step_ms / tuned.step_ms)


class Drawn(Recorded):
    """A bench whose outputs differ at each start."""

    def run(self, spec, listen):
        result = super().run(spec, listen)
        self.outputs = {path: tuple(1.2 * value for value in outputs) for path, outputs in self.outputs.items()}
        return result


def test_outputs_that_differ_from_start_to_start_tell_nothing_of_the_file():
    found = verify(Drawn((3.0, 1.0), (3.0, 1.0)), Exported("model.pt2"), replace(confirmed().stack, numerics=None))
    assert found.difference == pytest.approx(0.2)
    assert found.speedup
    far = verify(Drawn((3.0, 1.0), (3.0, -9.0)), Exported("model.pt2"), replace(confirmed().stack, numerics=None))
    assert not far.speedup


def confirmed() -> SessionState:
    state = SessionState.of(sample_history())
    assert state.stack.confirmed
    return state


def test_only_a_confirmed_stack_of_a_session_that_ended_is_verified():
    assert may_be_verified(confirmed())
    assert not may_be_verified(SessionState())
    assert not may_be_verified(SessionState.of(sample_history()[:-1]))
    once = confirmed()
    once.measured_stack = replace(once.stack, confirmed=False)
    assert not may_be_verified(once)


def test_a_file_without_settings_is_not_tried_as_if_it_had_some(tmp_path):
    state = replace(confirmed(), measured_stack=None, scaling=None)
    asked = []
    outputs = Outputs(export_path=str(tmp_path / "tuned.yaml"))
    written = write_outputs(state, sample_request(), outputs, load_catalog(), asked.append)
    assert "without settings" in written.sentences[0]
    assert not asked


def test_the_export_is_verified_after_it_is_written_and_before_the_reports(tmp_path):
    state, request = confirmed(), sample_request()
    paths = {name: tmp_path / name for name in ("tuned.yaml", "out.json", "report.md")}
    outputs = Outputs(str(paths["out.json"]), str(paths["tuned.yaml"]), str(paths["report.md"]))

    def verifying(exported):
        assert "precision.autocast: bfloat16" in paths["tuned.yaml"].read_text()
        assert not paths["out.json"].exists()
        assert exported == Exported(str(paths["tuned.yaml"]))
        state.apply(events.ExportVerified(VERIFIED))

    write_outputs(state, request, outputs, load_catalog(), verifying)
    assert json.loads(paths["out.json"].read_text())["verification"]["speedup"] == 1.9
    assert "confirmed: 1.90x" in paths["report.md"].read_text()
    assert "confirmed: 1.90x" in html_report(state, request, load_catalog())


def test_a_patched_config_is_verified_where_its_section_holds_the_settings(tmp_path):
    verified = []
    for text in ("lr: 0.1\n", "trainer:\n  max_epochs: 3\n  precision: 32\nseed_everything: 1\n"):
        config = tmp_path / "train.yaml"
        config.write_text(text)
        outputs = Outputs(export_path=str(tmp_path / "patched.yaml"), config_path=str(config))
        write_outputs(confirmed(), sample_request(), outputs, load_catalog(), verified.append)
    assert len(verified) == 1
    assert verified[0].config["lr"] == 0.1
    assert "perf_advisor" in verified[0].config
