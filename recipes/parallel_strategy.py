"""Several GPUs

What it does: Trains on several GPUs. `ddp` keeps a model in each process and averages gradients during the backward
pass; `fully_shard` (FSDP2) divides parameters, gradients and optimizer state among them. The global batch stays.

Why it helps: Each GPU computes a part of the batch. With `ddp` the backward pass hides most of the communication.
`fully_shard` helps if the model, its gradients and the optimizer state do not fit into one GPU.

When it does not: A short step ends before its gradients have arrived, and with a small batch each GPU has too little to
do. `fully_shard` sends more than `ddp`, and gains nothing if everything fits easily. `torch.nn.DataParallel` is not
tried: it was slower than one GPU with every model.

Numerics: exact for the same global batch, up to the order of sums; batch norms see the samples of one GPU only.

References: PyTorch documentation, Distributed Data Parallel and FSDP2. Li et al., PyTorch Distributed, VLDB 2020.
"""

from advisor.recipe import TRAINING, Recipe, why_not_sharded
from advisor.records import Bottleneck, Facts, Numerics, Proposal, Value, Values

# Speed-up divided by the number of GPUs, to order the trials: medians on two H200s, tests/gpu/RESULTS.md.
_EFFICIENCY = {"ddp": 0.69, "fully_shard": 0.32}


class ParallelStrategy(Recipe):
    key = "parallel.strategy"
    codes = {
        "single": "# one process on one GPU\n",
        "ddp": """\
# under torchrun, after torch.distributed.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
""",
        "fully_shard": """\
# under torchrun, after torch.distributed.init_process_group(), and before the optimizer is made
from torch.distributed.fsdp import fully_shard

for block in model.children():
    fully_shard(block)
fully_shard(model)
""",
    }
    plan_field = "strategy"
    modes = TRAINING
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY})
    numerics = Numerics.CLOSE
    inside_step = True
    saves_memory = True
    conflicts = (
        ("fully_shard", "precision.autocast", "float16", "float16's gradient scaler sees no shards of other ranks"),
        ("fully_shard", "model.memory_format", "channels_last", "fully_shard takes no channels-last parameters"),
        ("fully_shard", "compile.scope", "with_loss", "fully_shard gathers parameters between model and loss"),
    )

    def candidates(self, facts: Facts) -> Proposal:
        return ["ddp"] if why_not_sharded(facts) else ["ddp", "fully_shard"]

    def gain_for(self, facts: Facts, value: Value) -> float:
        return max(1.0, facts.gpus * _EFFICIENCY.get(str(value), 0.0))

    def conflict(self, value: Value, settings: Values) -> str | None:
        captured = settings.get("step.cuda_graph")
        if captured and value == "fully_shard":
            return "step.cuda_graph records the exchange of gradients of DistributedDataParallel only"
        if captured and value == "ddp" and settings.get("parallel.find_unused_parameters"):
            return "the search for unused parameters uses the host in each step, which step.cuda_graph cannot record"
        return super().conflict(value, settings)
