"""Reinforcement learning: no data at all, an environment that is stepped in the loop."""

import torch
from torch import nn
from torch.distributions import Categorical

policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)


def episode(length=5):
    state, log_probs, rewards = torch.zeros(4), [], []
    for _ in range(length):
        choice = Categorical(logits=policy(state))
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        rewards.append(float(action))
        state = torch.roll(state, 1) + action
    return torch.stack(log_probs), torch.tensor(rewards)


updates = 0
while updates < 10**6:
    log_probs, rewards = episode()
    loss = -(log_probs * (rewards - rewards.mean())).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    updates += 1
