"""A script for torchrun in the form of PyTorch's tutorial series: a ResNet-50 on made-up images, by DDP.

torchrun --standalone --nproc-per-node 2 tests/gpu/workloads/torchrun_ddp.py
perf-advisor tests/gpu/workloads/torchrun_ddp.py --gpus 2 --headless --budget 5m
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, train_data, optimizer, snapshot_path):
        self.gpu_id = int(os.environ["LOCAL_RANK"])
        self.rank = int(os.environ["RANK"])
        self.train_data = train_data
        self.optimizer = optimizer
        self.snapshot_path = snapshot_path
        self.model = DDP(model, device_ids=[self.gpu_id])

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = F.cross_entropy(output, targets)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        print(f"[GPU{self.gpu_id}] epoch {epoch}, {len(self.train_data)} steps")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self._run_batch(source.to(self.gpu_id), targets.to(self.gpu_id))

    def _save_snapshot(self, epoch):
        torch.save({"model": self.model.module.state_dict(), "epoch": epoch}, self.snapshot_path)

    def train(self, epochs):
        for epoch in range(epochs):
            self._run_epoch(epoch)
            if self.rank == 0:
                self._save_snapshot(epoch)


def main(epochs, batch_size):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    dataset = TensorDataset(torch.randn(1024, 3, 224, 224), torch.randint(1000, (1024,)))
    model = torchvision.models.resnet50().to(int(os.environ["LOCAL_RANK"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loader = DataLoader(dataset, batch_size=batch_size, sampler=DistributedSampler(dataset))
    Trainer(model, loader, optimizer, "snapshot.pt").train(epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    main(options.epochs, options.batch_size)
