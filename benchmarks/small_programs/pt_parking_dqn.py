"""Deep Q-learning for a car that backs into a parking space, with range sensors as observations."""
import copy
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

RAYS, ACTIONS, CAPACITY, BATCH, GAMMA = 72, 6, 25_000, 128, 0.97


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


class ParkingLot:
    """The car's pose relative to the space, seen through noisy range sensors."""

    STEER = np.array([-0.4, 0.0, 0.4, -0.4, 0.0, 0.4])
    SPEED = np.array([-0.3, -0.3, -0.3, 0.3, 0.3, 0.3])

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.angles = np.linspace(-np.pi, np.pi, RAYS, endpoint=False)
        self.reset()

    def reset(self):
        self.pose = self.rng.uniform([-3, -3, -np.pi], [3, 3, np.pi])
        self.time = 0
        return self.observe()

    def observe(self):
        x, y, heading = self.pose
        direction = self.angles + heading
        wall = np.minimum(5 / (np.abs(np.cos(direction)) + 1e-3), 5 / (np.abs(np.sin(direction)) + 1e-3))
        ranges = wall - x * np.cos(direction) - y * np.sin(direction)
        return (ranges / 5 + self.rng.normal(0, 0.01, RAYS)).astype(np.float32)

    def step(self, action):
        x, y, heading = self.pose
        speed = self.SPEED[action]
        heading = heading + speed * self.STEER[action]
        self.pose = np.array([x + speed * np.cos(heading), y + speed * np.sin(heading), heading])
        self.time += 1
        distance = np.hypot(*self.pose[:2])
        parked = distance < 0.3
        done = parked or distance > 6 or self.time >= 80
        return self.observe(), float(parked) - 0.01 * distance, done


class ReplayBuffer:
    """The last transitions, oldest first."""

    def __init__(self, capacity, width):
        self.capacity = capacity
        self.states = np.empty((0, width), np.float32)
        self.actions = np.empty(0, np.int64)
        self.rewards = np.empty(0, np.float32)
        self.following = np.empty((0, width), np.float32)
        self.ended = np.empty(0, np.float32)

    def extend(self, states, actions, rewards, following, ended):
        self.states = np.concatenate([self.states, states])[-self.capacity:]
        self.actions = np.concatenate([self.actions, actions])[-self.capacity:]
        self.rewards = np.concatenate([self.rewards, rewards])[-self.capacity:]
        self.following = np.concatenate([self.following, following])[-self.capacity:]
        self.ended = np.concatenate([self.ended, ended])[-self.capacity:]

    def sample(self, rng, count):
        index = rng.integers(0, len(self.states), count)
        fields = self.states, self.actions, self.rewards, self.following, self.ended
        return [torch.from_numpy(field[index]) for field in fields]


def batch_of(transitions):
    states, actions, rewards, following, ended = zip(*transitions)
    return (np.stack(states), np.array(actions, np.int64), np.array(rewards, np.float32),
            np.stack(following), np.array(ended, np.float32))


def main():
    random.seed(0)
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    lot, buffer = ParkingLot(), ReplayBuffer(CAPACITY, RAYS)
    q = nn.Sequential(nn.Linear(RAYS, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, ACTIONS))
    target = copy.deepcopy(q).requires_grad_(False)
    optimizer = torch.optim.Adam(q.parameters(), lr=5e-4)

    def play(state, explore):
        if random.random() < explore:
            action = random.randrange(ACTIONS)
        else:
            with torch.no_grad():
                action = int(q(torch.from_numpy(state)[None]).argmax())
        following, reward, done = lot.step(action)
        return (state, action, reward, following, done), lot.reset() if done else following

    state, first = lot.reset(), []
    for _ in range(CAPACITY):
        transition, state = play(state, 1.0)
        first.append(transition)
    buffer.extend(*batch_of(first))
    meter = Meter()
    while True:
        transition, state = play(state, 0.1)
        buffer.extend(*batch_of([transition]))
        s, a, r, s2, ended = buffer.sample(rng, BATCH)
        goal = r + GAMMA * (1 - ended) * target(s2).amax(1)
        loss = F.smooth_l1_loss(q(s).gather(1, a[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if meter.count % 200 == 0:
            target.load_state_dict(q.state_dict())
            print(f"step {meter.count} loss {loss.item():.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
