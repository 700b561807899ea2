"""Stand-in until the merge."""

from dataclasses import replace

import torch
from torch.utils.data import DataLoader

from advisor.step.device_loader import *
from advisor.step.step import mover_of


def loop_loader(data, plan):
    if not isinstance(data, DataLoader) or not (plan.device_prefetch or plan.device_transform):
        return data
    move = mover_of(replace(plan, non_blocking=plan.non_blocking or plan.device_prefetch))
    t = plan.device_transform
    return DeviceLoader(
        data, torch.device(plan.device), move if t is None else (lambda b: t(move(b))), plan.device_prefetch
    )


def is_loader(data):
    return isinstance(data, DataLoader | DeviceLoader)
