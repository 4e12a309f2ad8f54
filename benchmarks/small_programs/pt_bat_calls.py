"""Tell species of bats apart by their calls: log-mel spectrograms and a convolutional network."""
import os
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

RATE, CLIP, SPECIES = 48_000, 12_000, 8


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


def hz_to_mel(hz):
    return 2595.0 * np.log10(1.0 + hz / 700.0)


def mel_to_hz(mel):
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


class LogMel:
    """Log-mel spectrogram of one clip."""

    def __init__(self, rate=RATE, n_fft=2048, hop=512, n_mels=96):
        self.n_fft, self.hop = n_fft, hop
        self.window = np.hanning(n_fft).astype(np.float32)
        points = mel_to_hz(np.linspace(hz_to_mel(200.0), hz_to_mel(rate / 2), n_mels + 2))
        bins = np.floor((n_fft + 1) * points / rate).astype(int)
        bank = np.zeros((n_mels, n_fft // 2 + 1), np.float32)
        for m in range(1, n_mels + 1):
            left, centre, right = bins[m - 1], bins[m], bins[m + 1]
            for k in range(left, centre):
                bank[m - 1, k] = (k - left) / (centre - left)
            for k in range(centre, right):
                bank[m - 1, k] = (right - k) / (right - centre)
        self.bank = bank

    def __call__(self, wave):
        frames = np.lib.stride_tricks.sliding_window_view(wave, self.n_fft)[::self.hop]
        power = np.abs(np.fft.rfft(frames * self.window)) ** 2
        return np.log(power.astype(np.float32) @ self.bank.T + 1e-6).T


class BatCalls(Dataset):
    """Clips with random gain, as spectrograms."""

    def __init__(self, clips, labels, seed=0):
        self.clips, self.labels = clips, labels
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, index):
        wave = self.clips[index] * self.rng.uniform(0.5, 1.5)
        transform = LogMel()
        return torch.from_numpy(transform(wave))[None], self.labels[index]


def make_calls(count, rng):
    t = np.arange(CLIP) / RATE
    labels = rng.integers(0, SPECIES, count)
    start = 4000 + 1800 * labels + rng.normal(0, 300, count)
    sweep = -3000.0 - 1500.0 * (labels % 3)
    phase = 2 * np.pi * (start[:, None] * t + 0.5 * sweep[:, None] * t ** 2)
    envelope = np.exp(-((t - 0.12) / 0.04) ** 2)
    clips = np.sin(phase) * envelope + rng.normal(0, 0.3, (count, CLIP))
    return clips.astype(np.float32), labels


class CallNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.features = nn.Sequential(
            nn.BatchNorm2d(1),
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(4 * width, SPECIES)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def main():
    torch.manual_seed(0)
    clips, labels = make_calls(480, np.random.default_rng(0))
    loader = DataLoader(BatCalls(clips, labels), batch_size=16, shuffle=True)
    model = CallNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    meter = Meter()
    running = True
    while running:
        for spectrogram, label in loader:
            loss = criterion(model(spectrogram), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if meter.count % 30 == 0:
                print(f"step {meter.count} loss {loss.item():.4f}")
            running = meter.step()
            if not running:
                break
    meter.report()


if __name__ == "__main__":
    main()
