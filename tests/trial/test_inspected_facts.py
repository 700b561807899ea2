"""The facts that a loaded workload is described by."""

import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor

from advisor.inlined.lengths import PadsToMultiple
from advisor.recipe.plan import StepPlan
from advisor.records import TargetSpec
from advisor.step.step import InferStep, OwnStep, TrainStep
from advisor.trial.inspection import inspect_loop, padding_problem
from advisor.trial.measurement.draws import probe_batches
from advisor.workloads.normalise import normalise


class Named(Dataset):
    """Samples with a file name and a number beside the tensor, of one size or of several."""

    def __init__(self, *sizes):
        self.sizes = sizes

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {"x": torch.ones(self.sizes[index % len(self.sizes)]), "path": f"{index}.png", "index": index}


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, batch):
        return self.weight * batch["x"].sum()


def inspected(*parts):
    loop = normalise(parts, TargetSpec("t:build", "."))
    return inspect_loop(loop, torch.device("cpu"), probe_batches(loop.data, 0))


def taken(model, batch):
    return model(batch)


@pytest.mark.parametrize(("sizes", "vary"), [((4,), False), ((4, 5), True)])
def test_names_and_numbers_of_samples_are_no_shapes(sizes, vary):
    assert inspected(Sums(), DataLoader(Named(*sizes), batch_size=1), taken).varying_shapes is vary


def test_what_names_a_batch_of_objects_is_no_shape():
    batches = [({"x": torch.ones(3)}, number) for number in range(4)]
    assert not inspected(Sums(), batches, lambda model, batch: model(batch[0])).varying_shapes


def test_image_files_below_a_subset_can_be_decoded_in_another_way(tmp_path):
    (tmp_path / "class").mkdir()
    Image.new("RGB", (30, 20)).save(tmp_path / "class" / "a.jpg")
    files = Subset(ImageFolder(tmp_path, transform=Compose([Resize(10), ToTensor()])), [0])
    loader = inspected(nn.Conv2d(3, 1, 3), DataLoader(files), lambda model, batch: model(batch[0]).sum()).loader
    assert loader.decoding_problem == ""


@pytest.mark.parametrize(
    ("layer", "fuses"), [(nn.EmbeddingBag(8, 2), True), (nn.EmbeddingBag(8, 2, sparse=True), False)]
)
def test_a_fused_step_is_not_offered_for_sparse_gradients(layer, fuses):
    model, ids = nn.Sequential(layer, nn.Linear(2, 1)), torch.zeros(4, 3, dtype=torch.long)

    def offered(optimizer):
        return inspected(model, ids, lambda model, batch: model(batch).sum(), optimizer).optimizer.implementations

    assert ("fused" in offered(torch.optim.SGD)) is fuses
    assert "fused" in offered(torch.optim.SGD(model[1].parameters(), lr=0.1))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*torch.jit:FutureWarning")
def test_torchscript_is_told_from_other_modules():
    script = torch.jit.script(nn.Linear(2, 1))
    assert inspected(script, torch.ones(3, 2)).torchscript
    assert not inspected(nn.Sequential(script), torch.ones(3, 2)).torchscript


def test_an_optimizer_that_has_made_steps_is_told_from_a_new_one():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    parts = model, (torch.ones(4, 2), torch.ones(4, 1)), nn.MSELoss(), optimizer
    assert not inspected(*parts).optimizer.made_steps
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    assert inspected(*parts).optimizer.made_steps


@pytest.mark.process
def test_a_model_in_the_wrapper_of_fabric_has_its_own_name():
    model = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1).setup_module(nn.Linear(4, 2))
    assert inspected(model, (torch.randn(4, 4), torch.arange(4) % 2)).model == "Linear"


class Reader(nn.Module):
    """The mean over the words of each text: with a mask without its padding. Or the scores of each word."""

    def __init__(self, masks, of_words=False):
        super().__init__()
        self.words, self.head, self.masks, self.of_words = nn.Embedding(50, 16), nn.Linear(16, 3), masks, of_words

    def forward(self, texts):
        counts = (texts != 0).float() if self.masks else torch.ones(texts.shape)
        words = self.words(texts) * counts[..., None]
        return self.head(words if self.of_words else words.sum(1) / counts.sum(1, keepdim=True))


def batch(length):
    texts = torch.randint(1, 50, (8, length))
    for row, sample in enumerate(texts):
        sample[length - 2 * row :] = 0 if row else sample[length:]
    return texts, torch.arange(8) % 3


def training(model):
    return TrainStep(model, torch.optim.SGD(model.parameters()), nn.CrossEntropyLoss(), StepPlan("train", "cpu"))


def inference(model):
    return InferStep(model.eval(), StepPlan("infer", "cpu"), with_target=True)


def problem_of(step):
    batches = [batch(30), batch(24)]
    pads = PadsToMultiple(lambda batch: batch, 30)
    pads.learn(batches)
    problem = padding_problem(step, batches, pads)
    assert batches[1][0].shape == (8, 24)
    return problem


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("step_of", [training, inference])
def test_a_model_without_a_mask_takes_padding_for_data(step_of, masks):
    torch.manual_seed(0)
    model = Reader(masks)
    step, trained = step_of(model), model.training
    assert bool(problem_of(step)) is not masks
    assert model.training is trained


def test_outputs_that_grow_with_the_batch_are_not_padded():
    assert "longer" in problem_of(inference(Reader(masks=True, of_words=True)))


def test_a_step_of_ones_own_is_not_run_to_find_out():
    calls = []
    assert "your own" in problem_of(OwnStep(calls.append, Reader(masks=True), StepPlan("train", "cpu")))
    assert not calls
