"""Matched filtering of hydrophone recordings against a bank of Doppler-shifted chirps."""
import math
import os
import time

import torch

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PHONES, RATE = (4, 2000) if SMOKE else (64, 48000)
LISTEN, PULSE = 10.0, 0.48  # seconds
SPEEDS = [-12.0, -6.0, 0.0, 6.0, 12.0, 18.0]  # closing speed of the target, m/s
SOUND = 1500.0
SAMPLES, TAPS = int(LISTEN * RATE), int(PULSE * RATE)


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


def chirp(speed):
    """The transmitted sweep as it comes back from a target with this closing speed."""
    t = torch.arange(TAPS, dtype=torch.float64) / RATE * (1 + 2 * speed / SOUND)
    low, high = 0.1 * RATE, 0.3 * RATE
    phase = 2 * math.pi * (low * t + 0.5 * (high - low) / PULSE * t * t)
    return (torch.sin(phase) * torch.hann_window(TAPS, dtype=torch.float64)).float()


def recordings(count=2):
    """Pings as the converter delivers them: 16-bit samples in pinned host memory."""
    g = torch.Generator().manual_seed(2)
    pings = []
    for number in range(count):
        samples = torch.randint(-3000, 3000, (PHONES, SAMPLES), generator=g, dtype=torch.int16)
        echo = (1500 * chirp(SPEEDS[(number + 1) % len(SPEEDS)])).to(torch.int16)
        for phone in range(PHONES):
            start = int((0.3 + 0.1 * number) * SAMPLES) + 7 * phone
            samples[phone, start:start + TAPS] += echo
        pings.append(samples.pin_memory() if DEVICE == "cuda" else samples)
    return pings


class Receiver:
    """Correlates all hydrophones with all replicas; linear, so the transforms are padded."""

    def __init__(self):
        self.size = SAMPLES + TAPS - 1
        replicas = torch.stack([chirp(s) for s in SPEEDS]).to(DEVICE)
        replicas /= replicas.norm(dim=1, keepdim=True)
        self.replicas = torch.fft.rfft(replicas, n=self.size).conj()

    def process(self, ping):
        """Highest correlation of each replica and hydrophone, and when it occurs."""
        spectrum = torch.fft.rfft(ping, n=self.size)
        peaks, lags = [], []
        for replica in self.replicas:
            correlation = torch.fft.irfft(spectrum * replica, n=self.size)[:, :SAMPLES]
            peak, lag = correlation.max(dim=1)
            peaks.append(peak)
            lags.append(lag)
        return torch.stack(peaks), torch.stack(lags)


def detect(peaks, lags, level):
    """Best speed over the array, its mean delay and how far it stands above the noise."""
    score = peaks.mean(1) / level
    best = score.argmax()
    return torch.stack((best.float(), lags[best].float().mean() / RATE, score[best]))


@torch.inference_mode()
def main():
    pings = recordings()
    receiver = Receiver()
    track = torch.zeros(4, 3, device=DEVICE)

    meter = Meter()
    count = 0
    while True:
        ping = pings[count % len(pings)].to(DEVICE, non_blocking=True).float()
        ping -= ping.mean(1, keepdim=True)
        peaks, lags = receiver.process(ping)
        track[count % 4] = detect(peaks, lags, ping.std())
        count += 1
        if count % 20 == 0:
            for best, delay, score in track[-2:].tolist():
                print(f"ping {count}: target at {SPEEDS[int(best)]:+.0f} m/s, {delay:.4f} s, {score:.3f} x noise")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
