"""Imitation of chess moves: a residual tower on 8x8 boards, policy and result heads."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


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


PLANES, MOVES = 13, 64 * 8


class Tower(nn.Module):
    def __init__(self, channels=64, blocks=4):
        super().__init__()
        self.stem = nn.Conv2d(PLANES, channels, 3, padding=1)
        self.first = nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1) for _ in range(blocks)])
        self.second = nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1) for _ in range(blocks)])
        self.policy = nn.Conv2d(channels, MOVES // 64, 1)
        self.value = nn.Sequential(nn.Linear(channels, 32), nn.ReLU(), nn.Linear(32, 3))
        for conv in self.second:
            nn.init.zeros_(conv.weight)

    def forward(self, boards):
        h = F.relu(self.stem(boards))
        for a, b in zip(self.first, self.second):
            h = F.relu(h + b(F.relu(a(h))))
        return self.policy(h).flatten(1), self.value(h.mean(dim=(2, 3)))


def fake_positions(count):
    """Random pieces; the 'best move' is a fixed random function of the occupied squares."""
    pieces = torch.randint(0, 12, (count, 64))
    empty = torch.rand(count, 64) < 0.6
    boards = F.one_hot(pieces, 12).float() * (~empty).unsqueeze(-1)
    boards = torch.cat([boards, torch.randint(0, 2, (count, 1, 1)).expand(count, 64, 1).float()], dim=2)
    project = torch.randn(13 * 64, 40) @ torch.randn(40, MOVES)
    moves = (boards.flatten(1) @ project).argmax(1)
    material = (boards[..., :6].sum((1, 2)) - boards[..., 6:12].sum((1, 2)))
    results = torch.bucketize(material, torch.tensor([-1.5, 1.5]))
    return boards.transpose(1, 2).reshape(count, PLANES, 8, 8).contiguous(), moves, results


def main():
    torch.manual_seed(64)
    boards, moves, results = fake_positions(8192)
    net = Tower()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
    meter, going, step = Meter(), True, 0
    while going:
        for pick in torch.randperm(len(boards)).split(32):
            policy, value = net(boards[pick])
            move_loss = F.cross_entropy(policy, moves[pick])
            result_loss = F.cross_entropy(value, results[pick])
            loss = move_loss + 0.5 * result_loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 100 == 0:
                top = (policy.argmax(1) == moves[pick]).float().mean().item()
                print(f"{step} move {move_loss.item():.3f} result {result_loss.item():.3f} top-1 {top:.3f}")
            going = meter.step()
            if not going:
                break
    meter.report()


if __name__ == "__main__":
    main()
