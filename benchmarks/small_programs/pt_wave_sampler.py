"""Sample short waveforms from a small WaveNet-like network (mu-law, 64 levels)."""
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


LEVELS = 64
WINDOW = 1024


class CausalConv(nn.Conv1d):
    def __init__(self, inputs, outputs, dilation):
        super().__init__(inputs, outputs, 2, dilation=dilation)
        self.left = dilation

    def forward(self, x):
        return super().forward(F.pad(x, (self.left, 0)))


class Block(nn.Module):
    def __init__(self, channels, skip, dilation):
        super().__init__()
        self.gate = CausalConv(channels, 2 * channels, dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, skip, 1)

    def forward(self, x):
        a, b = self.gate(x).chunk(2, dim=1)
        h = torch.tanh(a) * torch.sigmoid(b)
        return x + self.residual(h), self.skip(h)


class WaveNet(nn.Module):
    def __init__(self, channels=24, skip=32, dilations=(1, 2, 4, 8, 16, 32, 64)):
        super().__init__()
        self.embed = nn.Embedding(LEVELS, channels)
        self.blocks = nn.ModuleList([Block(channels, skip, d) for d in dilations])
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, LEVELS, 1))
        self.receptive_field = 1 + sum(dilations)

    def forward(self, codes):
        x = self.embed(codes).transpose(1, 2)
        total = 0
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        return self.out(total)


def mu_law_decode(codes, mu=LEVELS - 1):
    y = 2 * codes.float() / mu - 1
    return torch.sign(y) * ((1 + mu) ** y.abs() - 1) / mu


def train_briefly(net, steps=12):
    """A few steps on sine waves so that the samples are not pure noise."""
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    time_axis = torch.arange(512)
    for _ in range(steps):
        pitch = 0.02 + 0.1 * torch.rand(4, 1)
        wave = torch.sin(2 * torch.pi * pitch * time_axis)
        codes = ((wave + 1) / 2 * (LEVELS - 1)).round().long()
        loss = F.cross_entropy(net(codes[:, :-1]), codes[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


@torch.inference_mode()
def generate(net, voices, meter, temperature=0.9):
    samples = torch.randint(0, LEVELS, (voices, WINDOW))
    going, count = True, 0
    while going:
        context = samples[:, -WINDOW:]
        logits = net(context)[:, :, -1] / temperature
        following = torch.multinomial(logits.softmax(dim=1), 1)
        samples = torch.cat([samples[:, -4 * WINDOW:], following], dim=1)
        count += 1
        going = meter.step()
    return samples, count


def main():
    torch.manual_seed(8)
    net = WaveNet()
    print(f"receptive field {net.receptive_field}, loss after warm-up {train_briefly(net):.3f}")
    meter = Meter()
    samples, count = generate(net.eval(), voices=4, meter=meter)
    sound = mu_law_decode(samples)
    print(f"{count} samples, rms {sound.square().mean().sqrt():.3f}")
    meter.report()


if __name__ == "__main__":
    main()
