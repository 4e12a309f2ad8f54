"""Piano transcription on synthetic chords: waveform -> log spectrogram -> notes per frame."""
import math
import os
import time

import torch
from torch import nn


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


RATE, SECONDS = 8000, 1.0
WINDOW, HOP, NOTES = 1024, 256, 36


def synthesize(count):
    t = torch.arange(int(RATE * SECONDS)) / RATE
    sound = 0.005 * torch.randn(count, len(t))
    roll = torch.zeros(count, NOTES)
    for i in range(count):
        for note in torch.randperm(NOTES)[: int(torch.randint(1, 5, ()))].tolist():
            pitch = 110 * 2 ** (note / 12)
            envelope = torch.exp(-t * (1 + 3 * torch.rand(())))
            phase = 2 * math.pi * torch.rand(())
            sound[i] += sum(envelope * torch.sin(2 * math.pi * k * pitch * t + phase) / k for k in (1, 2, 3)) * 0.2
            roll[i, note] = 1
    return sound, roll


class Spectrogram(nn.Module):
    """Log magnitude spectrogram, (batch, samples) -> (batch, bins, frames)."""

    def __init__(self, window, hop):
        super().__init__()
        self.window, self.hop = window, hop
        n = torch.arange(window).float()
        k = torch.arange(window // 2 + 1).float().unsqueeze(1)
        hann = torch.hann_window(window)
        self.register_buffer("hann", hann)
        self.register_buffer("cos", torch.cos(2 * math.pi * k * n / window) * hann)
        self.register_buffer("sin", torch.sin(2 * math.pi * k * n / window) * hann)

    def forward(self, sound):
        frames = sound.unfold(1, self.window, self.hop)
        real = frames @ self.cos.T
        imag = frames @ self.sin.T
        power = real.square() + imag.square()
        return torch.log1p(power).transpose(1, 2)


class Transcriber(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.spectrogram = Spectrogram(WINDOW, HOP)
        self.net = nn.Sequential(
            nn.Conv1d(WINDOW // 2 + 1, hidden, 1), nn.ReLU(),
            nn.Conv1d(hidden, hidden, 3, padding=1), nn.ReLU(),
            nn.Conv1d(hidden, NOTES, 1),
        )

    def forward(self, sound):
        with torch.no_grad():
            features = self.spectrogram(sound)
        return self.net(features).mean(dim=2)


def f1(logits, roll):
    guess = (logits > 0).float()
    hit = (guess * roll).sum()
    return (2 * hit / (guess.sum() + roll.sum()).clamp(min=1)).item()


def main():
    torch.manual_seed(21)
    sound, roll = synthesize(320)
    model = Transcriber()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0))
    meter, step, going = Meter(), 0, True
    while going:
        for pick in torch.randperm(len(sound)).split(16):
            gain = 0.5 + torch.rand(len(pick), 1)
            logits = model(sound[pick] * gain)
            loss = criterion(logits, roll[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 100 == 0:
                print(f"step {step} loss {loss.item():.4f} f1 {f1(logits.detach(), roll[pick]):.3f}")
            going = meter.step()
            if not going:
                break
    meter.report()


if __name__ == "__main__":
    main()
