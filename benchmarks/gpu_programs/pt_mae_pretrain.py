"""Masked-autoencoder pretraining of a vision transformer on synthetic images."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")

SIZE, PATCH = (32, 8) if SMOKE else (224, 16)
GRID = SIZE // PATCH
TOKENS, PIXELS = GRID * GRID, 3 * PATCH * PATCH
KEEP = TOKENS // 4
BATCH = 4 if SMOKE else 256
ENCODER = (32, 2, 2) if SMOKE else (1024, 16, 16)      # width, heads, depth
DECODER = (16, 2, 1) if SMOKE else (512, 8, 4)
IMAGES = 32 if SMOKE else 4096
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

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def tower(width, heads, depth):
    blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
    if not SMOKE:
        for block in blocks:
            block.compile(dynamic=False)
    return blocks


class MaskedAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        wide, narrow = ENCODER[0], DECODER[0]
        self.patch = nn.Linear(PIXELS, wide)
        self.pos = nn.Parameter(torch.randn(1, TOKENS, wide) * 0.02)
        self.encoder, self.decoder = tower(*ENCODER), tower(*DECODER)
        self.norm, self.bridge = nn.LayerNorm(wide), nn.Linear(wide, narrow)
        self.blank = nn.Parameter(torch.randn(1, 1, narrow) * 0.02)
        self.pos_out = nn.Parameter(torch.randn(1, TOKENS, narrow) * 0.02)
        self.norm_out, self.pixels = nn.LayerNorm(narrow), nn.Linear(narrow, PIXELS)

    def forward(self, patches):
        b = patches.shape[0]
        order = torch.rand(b, TOKENS, device=patches.device).argsort(1)
        keep, hidden = order[:, :KEEP, None], order[:, KEEP:, None]
        x = self.patch(patches.gather(1, keep.expand(-1, -1, PIXELS)))
        x = x + self.pos.expand(b, -1, -1).gather(1, keep.expand(-1, -1, x.shape[2]))
        for block in self.encoder:
            x = block(x)
        x = self.bridge(self.norm(x))
        # back into image order, with a learned blank for what was hidden
        x = torch.cat([x, self.blank.to(x.dtype).expand(b, TOKENS - KEEP, -1)], dim=1)
        back = order.argsort(1)[:, :, None].expand(-1, -1, x.shape[2])
        x = x.gather(1, back) + self.pos_out.to(x.dtype)
        for block in self.decoder:
            x = block(x)
        x = x.gather(1, hidden.expand(-1, -1, x.shape[2]))
        target = patches.gather(1, hidden.expand(-1, -1, PIXELS)).float()
        target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-4).sqrt()
        return F.mse_loss(self.pixels(self.norm_out(x)).float(), target)


def make_images():
    """uint8 images of smooth random colour fields, as patches [n, tokens, pixels]."""
    images = torch.empty(IMAGES, 3, SIZE, SIZE, dtype=torch.uint8, device=DEVICE)
    for part in images.split(256):
        coarse = torch.rand(len(part), 3, 9, 9, device=DEVICE)
        part.copy_(F.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear") * 255)
    patches = images.view(IMAGES, 3, GRID, PATCH, GRID, PATCH).permute(0, 2, 4, 3, 5, 1)
    return patches.reshape(IMAGES, TOKENS, PIXELS)


def main():
    torch.manual_seed(0)
    images = make_images()
    with torch.device(DEVICE):
        model = MaskedAutoencoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.05,
                                  fused=DEVICE == "cuda")
    meter, step = Meter(), 0
    while True:
        pick = torch.randint(IMAGES, (BATCH,), device=DEVICE)
        patches = images[pick].to(torch.bfloat16).div_(127.5).sub_(1)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(patches)
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
