"""The functions of ``reference.py`` that train for an epoch, and that evaluate."""

import torch


class MetricLogger:
    def __init__(self, delimiter="  "):
        self.delimiter = delimiter

    def log_every(self, iterable, print_freq, header):
        for i, obj in enumerate(iterable):
            yield obj
            if i % print_freq == 0:
                print(self.delimiter.join([header, str(i)]))


def train_one_epoch(model, criterion, optimizer, data_loader, device, epoch):
    model.train()
    metric_logger = MetricLogger()
    for i, (image, target) in enumerate(metric_logger.log_every(data_loader, 10, f"Epoch: [{epoch}]")):
        image, target = image.to(device), target.to(device)
        # forward
        output = model(image)
        loss = criterion(output, target)  # smoothed

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        acc1 = (output.argmax(1) == target).float().mean()
        print(f"loss {loss.item():.6f}", f"acc1 {acc1.item():.3f}")


def evaluate(model, criterion, data_loader, device):
    model.eval()
    total = 0.0
    for image, target in data_loader:
        output = model(image.to(device))
        total += criterion(output, target.to(device)).item()
    print(f"loss {total / len(data_loader):.6f}")
