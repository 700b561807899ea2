"""Training loops as people write them: functions of a run, which is plain or has settings applied.

A loop takes 20 steps, notes its losses by ``run.note`` and returns what has a state. ``run.prepare``, ``train_step``,
``infer`` and ``own_step`` are those of a Tuning, or what a plain loop does in their place.
"""

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from graphed_steps import captured
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, TensorDataset

from advisor.recipe.catalog import load_catalog
from advisor.step.tuning import Tuning

FEATURES, CLASSES, BATCH, EPOCHS, VOCABULARY = 8, 4, 8, 4, 12
SAMPLES = 5 * BATCH  # five steps an epoch, 20 in all
CATALOG, CROSS_ENTROPY = load_catalog(), nn.CrossEntropyLoss()


class Loop(NamedTuple):
    """A loop, its fixed settings, and whether its steps draw random numbers."""

    function: Any
    always: Mapping[str, Any]
    draws: bool


LOOPS: dict[str, Loop] = {}


def loop(draws=False, **always):
    """Add a loop to the table. Its fixed settings are written with ``__`` for the dot."""

    def register(function):
        LOOPS[function.__name__] = Loop(
            function, {key.replace("__", "."): value for key, value in always.items()}, draws
        )
        return function

    return register


def of_output(model, loss, batch):
    return loss(model(batch[0]), batch[1])


def of_model(model, loss, batch):
    return loss(model, batch)


def models_own(model, loss, batch):
    return model(**batch).loss


class PlainRun:
    """A plain PyTorch loop, in the precision and with the accumulation of the settings that it is compared with."""

    def __init__(self, device, settings):
        self.device, self.losses = device, []
        self.precision = settings.get("precision.autocast", "float32")
        self.accumulate = settings.get("step.accumulate", 1)

    def note(self, loss):
        self.losses.append(float(loss.detach()))

    def prepare(self, *objects):
        return objects

    def train_step(self, model, optimizer, loss=None, *, form=of_output, clip=None):
        scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "float16")
        batches = 0

        def step(batch):
            nonlocal batches
            batches += 1
            with self._autocast(cached=form is not of_model):
                value = form(model, loss, self._moved(batch))
            scaler.scale(value / self.accumulate).backward()
            if batches % self.accumulate == 0:
                if clip is not None:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            return value

        model.train()
        return step

    def infer(self, model):
        def step(inputs):
            was_training = model.training
            model.eval()
            with torch.no_grad(), self._autocast(cached=True):
                output = model(self._moved(inputs))
            model.train(was_training)
            return output

        return step

    def own_step(self, step, model):
        def run(batch):
            with self._autocast(cached=False):
                return step(self._moved(batch))

        return run

    def _autocast(self, cached):
        """Weights are cast anew for each use where the loss may change them in between."""
        dtype = getattr(torch, self.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not torch.float32, cache_enabled=cached)

    def _moved(self, batch):
        return tree_map(lambda tensor: tensor.to(self.device), batch)


class TunedRun(PlainRun):
    """The same loop by the public API. On the CPU a stand-in records what a CUDA graph would."""

    def __init__(self, device, settings):
        super().__init__(device, settings)
        self.tuning, self.steps, self.was_captured = Tuning(settings, CATALOG), [], False
        self.records = "step.cuda_graph" in settings and device.type == "cpu"
        self.prepare, self.infer = self.tuning.prepare, self.tuning.infer

    def note(self, loss):
        super().note(loss)
        self.was_captured |= all(getattr(step, "captured", False) for step in self.steps)

    def train_step(self, model, optimizer, loss=None, *, form=of_output, clip=None):
        return self._recorded(self.tuning.train_step(model, optimizer, loss, clip_grad=clip))

    def own_step(self, step, model):
        return self._recorded(self.tuning.own_step(step, model))

    def _recorded(self, step):
        self.steps.append(captured(step) if self.records else step)
        return self.steps[-1]


class Net(nn.Module):
    def __init__(self, outputs=CLASSES, dropout=0.0):
        super().__init__()
        self.first, self.norm = nn.Linear(FEATURES, 16, bias=False), nn.BatchNorm1d(16)
        self.dropout, self.last = nn.Dropout(dropout), nn.Linear(16, outputs)
        self.scale = 1.0

    def forward(self, x):
        return self.scale * self.last(self.dropout(torch.tanh(self.norm(self.first(x)))))


class ConvBlock(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.GELU())


class ConvNet(nn.Sequential):
    def __init__(self):
        first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        super().__init__(first, ConvBlock(), ConvBlock(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


class TinyLM(nn.Module):
    """A language model with tied embeddings and, in the manner of Hugging Face, its own loss among its outputs."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids, labels=None):
        logits = self.head(torch.tanh(self.mix(self.embed(input_ids))))
        loss = None if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return SimpleNamespace(loss=loss, logits=logits)


def adamw(*models, lr=0.01):
    return torch.optim.AdamW([parameter for model in models for parameter in model.parameters()], lr=lr)


def features(samples=SAMPLES):
    inputs = torch.randn(samples, FEATURES, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, (inputs[:, :CLASSES] + inputs[:, CLASSES:]).argmax(1))


def loader(samples=SAMPLES):
    return DataLoader(features(samples), batch_size=BATCH, shuffle=True)


def tokens():
    starts = torch.randint(VOCABULARY, (SAMPLES, 1), generator=torch.Generator().manual_seed(1))
    return (starts + torch.arange(7)) % VOCABULARY


def epochs(batches):
    """The number of the epoch and a batch, 20 times."""
    return ((epoch, batch) for epoch in range(EPOCHS) for batch in batches)


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def started(run, loss, model=None, make=adamw, batches=None, **options):
    model = (model or Net()).to(run.device)
    model, optimizer, batches = run.prepare(model, make(model), batches or loader())
    return model, optimizer, run.train_step(model, optimizer, loss, **options), batches


def trained(run, loss=CROSS_ENTROPY, *, begin=lambda epoch, model: None, **options):
    """The usual loop of four epochs; ``begin(epoch, model)`` is called before each step."""
    model, optimizer, step, batches = started(run, loss, **options)
    for epoch, batch in epochs(batches):
        begin(epoch, model)
        run.note(step(batch))
    return {"model": model, "optimizer": optimizer}


@loop()
def plain(run):
    return trained(run)


@loop()
def images(run):
    inputs = torch.randn(SAMPLES, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    batches = DataLoader(TensorDataset(inputs, inputs.mean((2, 3)).argmax(1)), batch_size=BATCH)
    return trained(run, model=ConvNet(), make=sgd, batches=batches)


@loop()
def schedule_made_before(run):
    model = Net().to(run.device)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=21)
    model, optimizer, schedule, batches = run.prepare(model, optimizer, schedule, loader())
    step = run.train_step(model, optimizer, CROSS_ENTROPY)
    return scheduled(run, step, batches, schedule) | {"model": model, "optimizer": optimizer}


def scheduled(run, step, batches, *schedules):
    for _, batch in epochs(batches):
        run.note(step(batch))
        for schedule in schedules:
            schedule.step()
    return {f"schedule {at}": schedule for at, schedule in enumerate(schedules)}


@loop()
def rate_by_hand(run):
    model, optimizer, step, batches = started(run, CROSS_ENTROPY)
    for at, (epoch, batch) in enumerate(epochs(batches)):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 / (1 + at)
            group["weight_decay"] = 0.5 if epoch > 1 else 0.01
        run.note(step(batch))
    return {"model": model, "optimizer": optimizer}


@loop(draws=True)
def dropout_rate_changed(run):
    def begin(epoch, model):
        model.dropout.p = 0.1 + 0.2 * epoch

    return trained(run, model=Net(dropout=0.1), begin=begin)


@loop()
def frozen_and_unfrozen(run):
    return trained(run, begin=lambda epoch, model: model.first.requires_grad_(epoch in (1, 3)))


@loop(draws=True)
def validation_in_between(run):
    model, optimizer, step, batches = started(run, CROSS_ENTROPY, model=Net(dropout=0.2))
    infer, held_out = run.infer(model), features(16).tensors[0].to(run.device)
    for epoch in range(EPOCHS):
        for batch in batches:
            run.note(step(batch))
        run.note(infer(held_out).float().std())
        model.eval()
        with torch.no_grad():
            run.note(model(held_out).float().std())
        model.train()
        model.norm.train(epoch != 1)
    return {"model": model, "optimizer": optimizer}


BETA = 0.0


class Penalised(nn.Module):
    """A loss with weights of its own, of an object beside it, and in a global."""

    beta = 0.0

    def forward(self, output, target):
        weight = BETA + self.beta + self.options.beta
        return functional.cross_entropy(output, target) + weight * output.square().mean()


def annealed(*places):
    """A loop that changes the weights in these places, on a model that it changes too."""

    def run_loop(run):
        loss = Penalised()
        loss.options = SimpleNamespace(beta=0.0, log="run.txt")

        def begin(epoch, model):
            global BETA  # noqa: PLW0603 -- as loops do
            BETA = 0.5 * epoch * ("global" in places)
            loss.options.beta = 0.5 * epoch * ("object" in places)
            loss.beta = 0.5 * epoch * ("module" in places)
            model.scale = 1.0 + 0.1 * epoch * ("module" in places)

        return trained(run, loss, begin=begin)

    return run_loop


for place in ("global", "object", "module"):
    LOOPS[f"weight_of_the_{place}"] = Loop(annealed(place), {}, False)


@loop()
def checkpoint_loaded(run):
    """Save after the first epoch; load this checkpoint in the third."""
    model, optimizer, step, batches = started(run, CROSS_ENTROPY)
    for at, (_, batch) in enumerate(epochs(batches)):
        if at == 5:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if at == 11:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        run.note(step(batch))
    return {"model": model, "optimizer": optimizer}


@loop()
def averages(run):
    """A copy of the weights that the loop moves itself, and PyTorch's AveragedModel."""
    model, optimizer, step, batches = started(run, CROSS_ENTROPY)
    slow, averaged = copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)
    for _, batch in epochs(batches):
        run.note(step(batch))
        averaged.update_parameters(model)
        with torch.no_grad():
            for old, new in zip(slow.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.1)
    return {"model": model, "optimizer": optimizer, "slow": slow, "averaged": averaged}


@loop()
def two_models(run):
    """Two steps, each with a model and an optimizer; the loss of one reads the other model."""
    student, teacher = Net().to(run.device), Net().to(run.device)
    student, teacher, of_student, of_teacher, batches = run.prepare(
        student, teacher, adamw(student), torch.optim.SGD(teacher.parameters(), lr=0.1), loader()
    )

    def distilled(model, batch):
        with torch.no_grad():
            wanted = teacher(batch[0]).softmax(-1)
        return functional.cross_entropy(model(batch[0]), wanted)

    teach = run.train_step(teacher, of_teacher, CROSS_ENTROPY)
    learn = run.train_step(student, of_student, distilled, form=of_model)
    for _, batch in epochs(batches):
        run.note(teach(batch))
        run.note(learn(batch))
    return {"student": student, "teacher": teacher, "of_student": of_student, "of_teacher": of_teacher}


@loop()
def clipped(run):
    return trained(run, make=sgd, clip=0.2)


@loop(step__accumulate=5)
def accumulated(run):
    return trained(run)


@loop()
def smaller_last_batch(run):
    return trained(run, batches=loader(SAMPLES - 3))


@loop()
def weights_in_the_batch(run):
    def loss(model, batch):
        inputs, labels, weights = batch
        return (weights * functional.cross_entropy(model(inputs), labels, reduction="none")).mean()

    weights = [torch.linspace(0.1, 0.3 * at + 0.2, BATCH) for at in range(5)]
    batches = [(x, y, weights[at]) for at, (x, y) in enumerate(DataLoader(features(), batch_size=BATCH))]
    return trained(run, loss, batches=batches, form=of_model)


@loop()
def loss_of_the_model(run):
    """A mapping of arguments, tied weights, and the model's own loss."""
    model = TinyLM()
    batches = [{"input_ids": ids[:, :-1], "labels": ids[:, 1:]} for ids in tokens().split(BATCH)]
    found = trained(run, None, model=model, batches=batches, form=models_own)
    assert model.head.weight is model.embed.weight
    return found


def gan(run):
    """A maker and a critic. No norm follows a bias: its gradient would be rounding alone, which Adam blows up."""
    critic = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 1))
    return Net(FEATURES).to(run.device), critic.to(run.device)


def gan_step(maker, critic, of_maker, of_critic):
    def step(real):
        made = maker(real.roll(1, 0))
        of_critic.zero_grad()
        critic_loss = functional.softplus(-critic(real)).mean() + functional.softplus(critic(made.detach())).mean()
        critic_loss.backward()
        of_critic.step()
        of_maker.zero_grad()
        loss = functional.softplus(-critic(made)).mean()
        loss.backward()
        of_maker.step()
        return loss.detach() + critic_loss.detach()

    return step


@loop()
def gan_with_its_optimizers_in_the_closure(run):
    """Two Adams that ``prepare`` never sees. On a CPU they count their steps on the host unless they are fused."""
    maker, critic = gan(run)
    options = {"lr": 0.002, "betas": (0.5, 0.999), "fused": run.device.type == "cpu"}
    optimizers = [torch.optim.Adam(model.parameters(), **options) for model in (maker, critic)]
    maker, critic = run.prepare(maker, critic)
    scheduled(run, run.own_step(gan_step(maker, critic, *optimizers), maker), features().tensors[0].split(BATCH))
    return {"maker": maker, "critic": critic, "of_maker": optimizers[0], "of_critic": optimizers[1]}


class Trainer:
    """A step that is a method: it adds up the gradients of two halves, with a weight that the loop changes."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.beta = model, optimizer, 0.0

    def step(self, batch):
        total = torch.zeros((), device=batch[0].device)
        for inputs, labels in zip(batch[0].chunk(2), batch[1].chunk(2), strict=True):
            output = self.model(inputs)
            loss = functional.cross_entropy(output, labels) + self.beta * output.square().mean()
            (loss / 2).backward()
            total += loss.detach() / 2
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total


@loop()
def method_of_a_trainer(run):
    model = Net().to(run.device)
    model, optimizer, batches = run.prepare(model, adamw(model), loader())
    trainer = Trainer(model, optimizer)
    step = run.own_step(trainer.step, model)
    for epoch, batch in epochs(batches):
        trainer.beta = 0.5 * epoch
        run.note(step(batch))
    return {"model": model, "optimizer": optimizer}
