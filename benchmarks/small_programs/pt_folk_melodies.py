"""A recurrent network that learns to continue folk melodies, note by note."""
import argparse
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

NOTES = 48


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


class MelodyModel(nn.Module):
    """Two recurrent layers over embedded notes and their places in the bar."""

    def __init__(self, dim, hidden, bar=8):
        super().__init__()
        self.bar = bar
        self.notes = nn.Embedding(NOTES, dim)
        self.places = nn.Embedding(bar, dim)
        self.rnn = nn.GRU(dim, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, NOTES)

    def forward(self, notes, state=None):
        place = torch.arange(notes.shape[1]) % self.bar
        out, state = self.rnn(self.notes(notes) + self.places(place), state)
        return self.head(out), state


def make_melodies(count, length, generator):
    """Random walks on a scale that come back to where they began."""
    steps = torch.randint(-2, 3, (count, length), generator=generator)
    walk = torch.cumsum(steps, dim=1)
    home = torch.randint(12, 36, (count, 1), generator=generator)
    fade = torch.linspace(1, 0.3, length)
    return (home + (walk * fade).round().long()).clamp(0, NOTES - 1)


def check(loss, step):
    value = loss.item()
    if not torch.isfinite(loss):
        raise RuntimeError(f"loss is {value} at step {step}")
    return value


@torch.no_grad()
def continuation(model, start, length):
    """The likeliest continuation of a melody."""
    note, state, melody = start[None], None, []
    for _ in range(length):
        logits, state = model(note, state)
        note = logits[:, -1:].argmax(-1)
        melody.append(note.item())
    return melody


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.3)
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    melodies = make_melodies(3000, args.length + 1, generator)
    model = MelodyModel(args.dim, args.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    history = []
    meter = Meter()
    while True:
        batch = melodies[torch.randint(0, len(melodies), (args.batch_size,), generator=generator)]
        logits, _ = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append(check(loss, meter.count))
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {sum(history[-50:]) / len(history[-50:]):.4f}")
        if not meter.step():
            break
    meter.report()
    print("continuation", continuation(model, melodies[0, :16], 12))


if __name__ == "__main__":
    main()
