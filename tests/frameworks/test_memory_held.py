"""What memory holds in a recorded training, beside what PyTorch itself says."""

from __future__ import annotations

import json
from pathlib import Path

from tb_perfadvisor import load
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.operators import MemoryCategory
from tb_perfadvisor.signals.device.memory_use import memory_categories
from tb_perfadvisor.signals.device.recomputation import recomputed_bytes
from tests.support.recording import run

SCRIPT = """
import json, sys, torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

folder, checkpoints = sys.argv[1], sys.argv[2] == "checkpoint"

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)
    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, 64), nn.Linear(64, 1000)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if checkpoints else block(x)
        return self.head(x)

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
saved = {}

def pack(tensor):
    storage = tensor.untyped_storage()
    saved[storage.data_ptr()] = storage.nbytes()
    return tensor

def step():
    tokens, labels = torch.randint(0, 1000, (8, 64)), torch.randint(0, 1000, (512,))
    loss = nn.functional.cross_entropy(model(tokens).view(-1, 1000), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

with profile(
    activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True,
    schedule=schedule(wait=1, warmup=1, active=2),
    on_trace_ready=lambda prof: prof.export_chrome_trace(f"{folder}/rank0.pt.trace.json"),
) as recorder:
    for _ in range(4):
        step()
        recorder.step()
if not checkpoints:
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
sizes = [size for address, size in saved.items() if address not in parameters]
parameters = sum(p.numel() * p.element_size() for p in model.parameters())
json.dump([sum(sizes), parameters], open(f"{folder}/truth.txt", "w"))
"""


def recorded(folder: Path, mode: str) -> tuple[Signals, int, int]:
    run(SCRIPT, "torch", folder, str(folder), mode)
    (found,) = load(folder)
    saved, parameters = json.loads((folder / "truth.txt").read_text())
    return Signals(found), saved, parameters


def test_activations_are_what_autograd_saves(tmp_path: Path) -> None:
    signals, saved, _ = recorded(tmp_path, "keep")
    found = memory_categories(signals)
    assert found is not None
    # The peak is where the backward pass begins. The loss, of 4 bytes, is alive as well.
    assert found.at_peak[MemoryCategory.ACTIVATIONS] == saved + 4
    assert MemoryCategory.GRADIENTS not in found.at_peak
    assert recomputed_bytes(signals) == 0


def test_what_checkpoints_would_take_to_keep(tmp_path: Path) -> None:
    signals, _, _ = recorded(tmp_path, "checkpoint")
    # Of 512 tokens, a block keeps the norm's result (64 numbers) with mean and variance, and the
    # linear layer's and GELU's results (256 numbers each).
    assert recomputed_bytes(signals) == 4 * 512 * 4 * (64 + 2 + 256 + 256)
