"""Advantage actor-critic on a set of simulated cart-poles."""
import argparse
import os
import time

import numpy as np
import torch
from torch import nn


class Meter:
    """Counts steps and says when the time budget is used up."""

    def __init__(self, seconds):
        self.seconds = float(os.environ.get("PROGRAM_SECONDS", seconds))
        self.start, self.count, self.mark = None, 0, None

    def step(self, n=1):
        self.last = time.perf_counter()
        self.count += n
        if self.start is None:
            self.start = self.last
        if self.mark is None and self.last - self.start > 0.1 * self.seconds:
            self.mark = (self.count, self.last)
        return self.last - self.start < self.seconds

    def report(self):
        count, since = self.mark
        print(f"STEPS {self.count - count} SECONDS {self.last - since:.3f}")

class CartPoles:
    """A row of pole balancing environments."""

    def __init__(self, count, seed=0):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.uniform(-0.05, 0.05, (count, 4)).astype(np.float32)

    def step(self, action):
        x, v, th, w = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        tmp = (force + 0.05 * w ** 2 * np.sin(th)) / 1.1
        acc = (9.8 * np.sin(th) - np.cos(th) * tmp) / (0.5 * (4 / 3 - 0.1 * np.cos(th) ** 2 / 1.1))
        lin = tmp - 0.05 * acc * np.cos(th) / 1.1
        self.state = np.stack([x + 0.02 * v, v + 0.02 * lin, th + 0.02 * w, w + 0.02 * acc], 1).astype(np.float32)
        done = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        self.state[done] = self.rng.uniform(-0.05, 0.05, (done.sum(), 4))
        return self.state, np.ones(len(done), np.float32), done


class ActorCritic(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.policy = nn.Linear(hidden, 2)
        self.value = nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.body(x)
        return self.policy(h), self.value(h).squeeze(-1)


@torch.no_grad()
def select_actions(model, state):
    actions = []
    for row in torch.from_numpy(state):
        logits, _ = model(row.unsqueeze(0))
        actions.append(torch.multinomial(logits.softmax(-1), 1).squeeze(1))
    return torch.cat(actions)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--rollout", type=int, default=24)
    parser.add_argument("--gamma", type=float, default=0.98)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    envs = CartPoles(args.envs)
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=7e-4)
    meter = Meter(args.seconds)
    state, running, update = envs.state, True, 0
    while running:
        states, actions, rewards, dones = [], [], [], []
        for _ in range(args.rollout):
            action = select_actions(model, state)
            states.append(state)
            actions.append(action)
            state, reward, done = envs.step(action.numpy())
            rewards.append(reward)
            dones.append(done)
        with torch.no_grad():
            ret = model(torch.from_numpy(state))[1]
        returns = []
        for reward, done in zip(reversed(rewards), reversed(dones)):
            ret = torch.from_numpy(reward) + args.gamma * ret * torch.from_numpy(~done)
            returns.append(ret)
        returns = torch.cat(returns[::-1])
        logits, value = model(torch.from_numpy(np.concatenate(states)))
        logp = logits.log_softmax(-1)
        advantage = returns - value
        chosen = logp.gather(1, torch.cat(actions)[:, None]).squeeze(1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = -(chosen * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean() - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        update += 1
        if update % 100 == 0:
            print(f"update {update} loss {loss.item():.3f} falls {int(np.sum(dones))}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
