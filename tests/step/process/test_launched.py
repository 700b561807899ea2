"""Exported settings in two processes on the CPU, which have torchrun's variables: they train what one does."""

import contextlib
import socket
import textwrap

import forked
import pytest
import torch
from exported_module import plain_losses

pytestmark = pytest.mark.process

DDP = {
    "parallel.strategy": "ddp",
    "parallel.gradient_as_bucket_view": True,
    "optimizer.implementation": "foreach",
    "data.num_workers": 1,
}
RANKS = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
# Every rank has weights and random numbers of its own before it prepares, as a script without a seed has.
SCRIPT = '''
    import sys, warnings
    import torch
    from torch import distributed, nn
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler
    from advisor.step.tuning import Tuning

    EPOCHS, SEED = 2, 7

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)))
            self.head = nn.Linear(8, 3)
            self.register_buffer("scale", torch.ones(()))

        def forward(self, inputs):
            return self.head(self.blocks(inputs)) * self.scale

    def loop(rank):
        """A model, its optimizer and a shuffled loader, drawn by a seed of the rank's own."""
        torch.manual_seed(SEED + rank)
        model = Net()
        generator = torch.Generator().manual_seed(1)
        data = TensorDataset(torch.randn(24, 8, generator=generator), torch.arange(24) % 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, optimizer, DataLoader(data, batch_size=8, shuffle=True)

    def trained(step, loader):
        return [float(step(batch)) for _ in range(EPOCHS) for batch in loader]

    def by_settings(settings, rank):
        tuning = Tuning(settings)
        model, optimizer, loader = tuning.prepare(*loop(rank))
        step = tuning.train_step(model, optimizer, nn.CrossEntropyLoss())
        return model, trained(step, loader), len(loader)

    def main(settings):
        distributed.init_process_group("gloo")
        rank, found = distributed.get_rank(), {}
        ways = {"settings": lambda: by_settings(settings, rank)}
        ways["sharded"] = lambda: by_settings({"parallel.strategy": "fully_shard"}, rank)
        for name, way in ways.items():
            model, losses, length = way()
            state = model.state_dict()
            if name == "sharded":
                state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
            if name == "settings":
                assert type(model.module) is Net
                state = model.module.state_dict()
            mean = torch.tensor(losses)
            distributed.all_reduce(mean)
            found[name] = (state, (mean / 2).tolist(), length)
        divided(settings, rank)
        if rank == 0:
            torch.save(found, "found.pt")
        distributed.destroy_process_group()

    def divided(settings, rank):
        """Loaders that are divided already, or that cannot be."""
        model, optimizer, loader = loop(rank)
        own = DataLoader(loader.dataset, batch_size=4, sampler=DistributedSampler(loader.dataset))
        _, _, same, whole = Tuning({"parallel.strategy": "ddp"}).prepare(model, optimizer, own, loader)
        assert same is own and whole is loader
        model, optimizer, _ = loop(rank)
        unsized = DataLoader(loader.dataset, batch_size=None)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            _, _, same = Tuning({"parallel.strategy": "ddp"}).prepare(model, optimizer, unsized)
        assert same is unsized and any("each rank reads all batches" in str(one.message) for one in told), told

    if __name__ == "__main__":
        main(eval(sys.argv[1]))
'''


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two processes found in all ways, and the script itself, to do the same in this process."""
    folder = tmp_path_factory.mktemp("launched")
    script = textwrap.dedent(SCRIPT)
    with socket.create_server(("127.0.0.1", 0)) as free:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    with contextlib.chdir(folder):
        started = [
            forked.Program(script, repr(DDP), environment={**meeting, "RANK": rank, "LOCAL_RANK": rank, **RANKS})
            for rank in "01"
        ]
    for program in started:
        done = program.ended()
        assert done.returncode == 0, done.stderr[:6000]
    names = {"__name__": "script"}
    exec(script, names)
    return torch.load(folder / "found.pt"), names


@pytest.fixture(scope="module")
def alone(ranks):
    """The state and the losses of one process at the same global batch."""
    _, names = ranks
    model, optimizer, loader = names["loop"](0)
    losses = plain_losses(model, optimizer, (batch for _ in range(names["EPOCHS"]) for batch in loader))
    return model.state_dict(), losses


@pytest.mark.parametrize("way", ["settings", "sharded"])
def test_two_processes_train_as_one_does_at_the_same_global_batch(ranks, alone, way):
    state, losses, length = ranks[0][way]
    assert losses == pytest.approx(alone[1], rel=1e-5)
    assert list(state) == list(alone[0])
    for name, value in alone[0].items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6)
    assert length == 3


@pytest.mark.parametrize("way", ["settings", "sharded"])
def test_what_ranks_save_loads_into_the_plain_model(ranks, way):
    assert ranks[1]["Net"]().load_state_dict(ranks[0][way][0]).missing_keys == []
