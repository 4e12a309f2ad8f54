"""Double DQN from pixels with a replay buffer, on a small vectorised arcade game."""
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")

SIZE, STACK, ACTIONS = 84, 4, 3
ENVS = 4 if SMOKE else 16
SLOTS = 100 if SMOKE else 2500           # frames kept per environment
BATCH = 16 if SMOKE else 512
GAMMA, EPSILON, SYNC_EVERY = 0.99, 0.1, 200
LOG_EVERY = 5 if SMOKE else 50


def wait():
    torch.cuda.is_available() and torch.cuda.synchronize()


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
        if self.mark is None and self.last - self.start > 0.3 * self.seconds:
            wait()
            self.mark = (self.count, time.perf_counter())
        return self.last - self.start < self.seconds

    def report(self):
        wait()
        count, since = self.mark
        print(f"STEPS {self.count - count} SECONDS {time.perf_counter() - since:.3f}")

class Catch:
    """A ball falls, a paddle moves left or right; many copies at once."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.ball = rng.integers(4, SIZE - 8, (n, 2))
        self.paddle = np.full(n, SIZE // 2)

    def render(self):
        frame = np.zeros((self.n, SIZE, SIZE), np.uint8)
        for i, (y, x) in enumerate(self.ball):
            frame[i, y:y + 3, x - 1:x + 2] = 255
            frame[i, -3:, max(self.paddle[i] - 6, 0):self.paddle[i] + 6] = 128
        return frame

    def step(self, action):
        self.paddle = np.clip(self.paddle + (action - 1) * 4, 6, SIZE - 6)
        self.ball[:, 0] += 3
        done = self.ball[:, 0] >= SIZE - 6
        reward = done * np.where(np.abs(self.ball[:, 1] - self.paddle) <= 8, 1.0, -1.0)
        self.ball[done, 0] = 0
        self.ball[done, 1] = self.rng.integers(4, SIZE - 4, done.sum())
        return self.render(), reward, done


class Replay:
    """Ring buffer of single frames per environment; stacks are put together on sampling."""

    def __init__(self, rng):
        self.rng, self.at, self.full = rng, 0, False
        self.frames = np.zeros((ENVS, SLOTS, SIZE, SIZE), np.uint8)
        self.action = np.zeros((ENVS, SLOTS), np.int64)
        self.reward, self.done = np.zeros((2, ENVS, SLOTS), np.float32)

    def add(self, frame, action, reward, done):
        self.frames[:, self.at], self.action[:, self.at] = frame, action
        self.reward[:, self.at], self.done[:, self.at] = reward, done
        self.at, self.full = (self.at + 1) % SLOTS, self.full or self.at + 1 == SLOTS

    def sample(self, n):
        limit = SLOTS if self.full else self.at
        env = self.rng.integers(0, ENVS, n)
        slot = self.rng.integers(STACK, limit - 1, n)
        window = slot[:, None] + np.arange(-STACK + 1, 2)
        frames = self.frames[env[:, None], window].astype(np.float32) / 255.0
        frames = torch.from_numpy(frames).to(DEVICE)
        rest = [torch.from_numpy(a[env, slot]).to(DEVICE) for a in (self.action, self.reward, self.done)]
        return frames[:, :STACK], frames[:, 1:], *rest


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(STACK, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten())
        self.value, self.advantage = (
            nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, k)) for k in (1, ACTIONS))

    def forward(self, x):
        x = self.conv(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    online, target = QNetwork().to(DEVICE), QNetwork().to(DEVICE)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    env, replay = Catch(ENVS, rng), Replay(rng)
    frame, stack = env.render(), torch.zeros(ENVS, STACK, SIZE, SIZE, dtype=torch.uint8, device=DEVICE)

    @torch.no_grad()
    def play(random):
        nonlocal frame, stack
        stack = torch.cat([stack[:, 1:], torch.from_numpy(frame).to(DEVICE).unsqueeze(1)], dim=1)
        action = rng.integers(0, ACTIONS, ENVS)
        if not random:
            greedy = online(stack.float() / 255.0).argmax(1).cpu().numpy()
            action = np.where(rng.random(ENVS) < EPSILON, action, greedy)
        new, reward, done = env.step(action)
        replay.add(frame, action, reward, done)
        frame = new

    for _ in range(SLOTS // 2):
        play(random=True)

    meter, step = Meter(), 0
    while True:
        play(random=False)
        state, following, action, reward, done = replay.sample(BATCH)
        with torch.no_grad():
            choice = online(following).argmax(1, keepdim=True)
            goal = reward + GAMMA * (1 - done) * target(following).gather(1, choice).squeeze(1)
        value = online(state).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(value, goal)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % SYNC_EVERY == 0:
            target.load_state_dict(online.state_dict())
        if step % LOG_EVERY == 0:
            print(f"step {step} loss {loss.item():.5f} value {value.mean().item():.4f}")
        step += 1
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
