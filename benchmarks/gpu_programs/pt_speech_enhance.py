"""Speech enhancement: a masking transformer on STFT frames, trained on speech
that is reverberated and mixed with noise on the fly."""
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")

RATE = 16000
BATCH = 4 if SMOKE else 32
SAMPLES = 4000 if SMOKE else 3 * RATE
TAPS = 256 if SMOKE else RATE            # one second of room response
POOL = 16 if SMOKE else 384
ROOMS = 8 if SMOKE else 200
WIDTH, DEPTH = (32, 1) if SMOKE else (384, 4)
N_FFT, HOP = 510, 128
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

def make_speech(n, samples):
    """Harmonic tones with slowly changing loudness, roughly like voiced speech."""
    t = torch.arange(samples, device=DEVICE) / RATE
    pitch = torch.empty(n, 1, device=DEVICE).uniform_(90, 250)
    wave = sum(torch.sin(2 * math.pi * k * pitch * t) / k for k in range(1, 6))
    loud = torch.rand(n, 1, 12, device=DEVICE)
    loud = F.interpolate(loud, size=samples, mode="linear", align_corners=True)[:, 0]
    return wave * loud * 0.2


def make_rooms(n, taps):
    decay = torch.empty(n, 1, device=DEVICE).uniform_(4, 12)
    t = torch.arange(taps, device=DEVICE) / taps
    response = torch.randn(n, taps, device=DEVICE) * torch.exp(-decay * t) * 0.05
    response[:, 0] = 1.0
    return response


class Augment:
    def __init__(self):
        self.speech = make_speech(POOL, SAMPLES)
        self.rooms = make_rooms(ROOMS, TAPS)

    def reverb(self, dry, response):
        kernel = response.flip(-1).unsqueeze(1)
        padded = F.pad(dry.unsqueeze(0), (TAPS - 1, 0))
        return F.conv1d(padded, kernel, groups=dry.shape[0]).squeeze(0)

    def batch(self):
        clean = self.speech[torch.randint(POOL, (BATCH,), device=DEVICE)]
        response = self.rooms[torch.randint(ROOMS, (BATCH,), device=DEVICE)]
        wet = self.reverb(clean, response)
        snr = torch.empty(BATCH, 1, device=DEVICE).uniform_(0, 15)
        noise = torch.randn(BATCH, SAMPLES, device=DEVICE)
        level = wet.square().mean(1, keepdim=True).sqrt() * 10 ** (-snr / 20)
        return wet + level * noise, clean


class Layer(nn.Module):
    def __init__(self, width, heads=6 if not SMOKE else 2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class Enhancer(nn.Module):
    def __init__(self):
        super().__init__()
        bins = N_FFT // 2 + 1
        frames = SAMPLES // HOP + 1
        self.inp = nn.Linear(bins, WIDTH)
        self.pos = nn.Parameter(torch.randn(1, frames, WIDTH) * 0.02)
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(DEPTH))
        self.mask = nn.Linear(WIDTH, bins)

    def forward(self, magnitude):
        x = self.inp(torch.log1p(10 * magnitude)) + self.pos
        for layer in self.layers:
            x = layer(x)
        return torch.sigmoid(self.mask(x))


def main():
    torch.manual_seed(0)
    augment = Augment()
    window = torch.hann_window(N_FFT, device=DEVICE)
    model = Enhancer().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=DEVICE == "cuda")

    def spectrum(wave):
        return torch.stft(wave, N_FFT, HOP, window=window, return_complex=True).abs().transpose(1, 2)

    meter, step = Meter(), 0
    while True:
        noisy, clean = augment.batch()
        magnitude, target = spectrum(noisy), spectrum(clean)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            mask = model(magnitude)
        loss = F.l1_loss(torch.log1p(10 * mask.float() * magnitude), torch.log1p(10 * target))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % LOG_EVERY == 0:
            print(f"step {step} loss {loss.item():.4f}")
        step += 1
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
