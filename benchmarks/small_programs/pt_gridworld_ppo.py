"""PPO on a key-and-door gridworld, twelve copies of the world."""
import argparse
import os
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical


class Meter:
    """Counts steps and says when the time budget is used up."""

    def __init__(self, seconds=40):
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


class KeyDoor:
    """Walk to the key, then to the door; walls block; an episode has at most 60 moves."""

    MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))

    def __init__(self, seed, size=7):
        self.rng = np.random.default_rng(seed)
        self.size = size

    def reset(self):
        self.walls = self.rng.random((self.size, self.size)) < 0.15
        spots = self.rng.permutation(self.size * self.size)[:3]
        self.agent, self.key, self.door = [divmod(int(s), self.size) for s in spots]
        for place in (self.agent, self.key, self.door):
            self.walls[place] = False
        self.has_key, self.moves = False, 0
        return self.observe()

    def observe(self):
        planes = np.zeros((5, self.size, self.size), np.float32)
        planes[0] = self.walls
        planes[1][self.agent] = 1
        if not self.has_key:
            planes[2][self.key] = 1
        planes[3][self.door] = 1
        planes[4] = self.has_key
        return planes.reshape(-1)

    def step(self, action):
        dr, dc = self.MOVES[action]
        r, c = self.agent[0] + dr, self.agent[1] + dc
        if 0 <= r < self.size and 0 <= c < self.size and not self.walls[r, c]:
            self.agent = (r, c)
        self.moves += 1
        reward, done = -0.01, self.moves >= 60
        if not self.has_key and self.agent == self.key:
            self.has_key, reward = True, 0.5
        elif self.has_key and self.agent == self.door:
            reward, done = 1.0, True
        return self.observe(), reward, done


class ActorCritic(nn.Module):
    def __init__(self, inputs, actions, width=96):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.policy = nn.Linear(width, actions)
        self.value = nn.Linear(width, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.policy(h), self.value(h).squeeze(-1)


def collect(envs, current, net, length):
    n = len(envs)
    obs = torch.zeros(length, n, current[0].shape[0])
    actions = torch.zeros(length, n, dtype=torch.long)
    logps, values = torch.zeros(length, n), torch.zeros(length + 1, n)
    rewards, dones = torch.zeros(length, n), torch.zeros(length, n)
    with torch.no_grad():
        for t in range(length):
            for i, env in enumerate(envs):
                o = torch.from_numpy(current[i])
                logits, value = net(o)
                dist = Categorical(logits=logits)
                action = dist.sample()
                obs[t, i], actions[t, i], values[t, i] = o, action, value
                logps[t, i] = dist.log_prob(action)
                nxt, reward, done = env.step(action.item())
                rewards[t, i], dones[t, i] = reward, float(done)
                current[i] = env.reset() if done else nxt
        values[length] = net(torch.from_numpy(np.stack(current)))[1]
    return obs, actions, logps, values, rewards, dones


def advantages(values, rewards, dones, gamma=0.98, lam=0.95):
    out, running = torch.zeros_like(rewards), torch.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        alive = 1 - dones[t]
        delta = rewards[t] + gamma * values[t + 1] * alive - values[t]
        running = delta + gamma * lam * alive * running
        out[t] = running
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--envs", type=int, default=12)
    p.add_argument("--length", type=int, default=16)
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()
    torch.manual_seed(1)
    envs = [KeyDoor(s) for s in range(args.envs)]
    current = [e.reset() for e in envs]
    net = ActorCritic(current[0].shape[0], 4)
    opt = torch.optim.Adam(net.parameters(), lr=7e-4)
    meter, iteration = Meter(), 0
    while True:
        obs, actions, logps, values, rewards, dones = collect(envs, current, net, args.length)
        adv = advantages(values, rewards, dones)
        returns = (adv + values[:-1]).reshape(-1)
        adv = ((adv - adv.mean()) / (adv.std() + 1e-8)).reshape(-1)
        flat_obs, flat_act, flat_logp = obs.flatten(0, 1), actions.reshape(-1), logps.reshape(-1)
        for _ in range(args.epochs):
            for part in torch.randperm(len(adv)).split(128):
                logits, value = net(flat_obs[part])
                dist = Categorical(logits=logits)
                ratio = (dist.log_prob(flat_act[part]) - flat_logp[part]).exp()
                a = adv[part]
                gain = torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
                loss = -gain + 0.5 * (value - returns[part]).square().mean() - 0.01 * dist.entropy().mean()
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                opt.step()
        iteration += 1
        if iteration % 20 == 0:
            print(f"iteration {iteration} reward per step {rewards.mean():.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
