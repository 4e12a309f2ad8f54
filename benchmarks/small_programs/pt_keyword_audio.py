"""Keyword spotting: log spectrograms and a small recurrent network."""
import argparse
import os
import time

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

def make_clips(count, samples=4000, rate=4000):
    label = torch.randint(0, 8, (count,))
    t = torch.arange(samples) / rate
    tone = torch.sin(2 * torch.pi * (200 + 150 * label[:, None]) * t)
    return tone + 0.5 * torch.randn(count, samples), label


@torch.no_grad()
def spectrogram(clips, n_fft=126, hop=64):
    window = torch.hann_window(n_fft)
    power = torch.stft(clips, n_fft, hop, window=window, return_complex=True).abs().square()
    logs = torch.log1p(power).transpose(1, 2)
    return ((logs - logs.mean()) / logs.std()).contiguous()


class Spotter(nn.Module):
    def __init__(self, bins=64, hidden=96, classes=8):
        super().__init__()
        self.rnn = nn.GRU(bins, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.head(h.mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    clips, label = make_clips(2048)
    features = spectrogram(clips)
    held = slice(0, 256)
    model = Spotter(features.shape[2])
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    meter = Meter(args.seconds)
    running, epoch = True, 0
    while running:
        order = 256 + torch.randperm(len(features) - 256)
        for index in order.split(args.batch_size):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(features[index]), label[index])
            loss.backward()
            optimizer.step()
            running = meter.step()
            if not running:
                break
        epoch += 1
        if epoch % 5 == 0:
            model.eval()
            with torch.inference_mode():
                accuracy = (model(features[held]).argmax(1) == label[held]).float().mean()
            model.train()
            print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy.item():.3f}")
    meter.report()


if __name__ == "__main__":
    main()
