"""A script for torchrun that shards a GPT by fully_shard, with losses averaged over the ranks."""

import os

import gpt2
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

LOCAL_RANK = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(LOCAL_RANK)
dist.init_process_group("nccl", device_id=torch.device("cuda", LOCAL_RANK))
torch.manual_seed(0)
model, batch, loss_of, optimizer_of = gpt2.build()
model.cuda()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = optimizer_of(model.parameters())
batch = tuple(part.cuda() for part in batch)
for step in range(10_000):
    loss = loss_of(model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        shown = loss.detach()
        dist.all_reduce(shown, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(step, shown.item())
dist.destroy_process_group()
