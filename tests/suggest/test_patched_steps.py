"""Patched steps of PyTorch run, and give the results that they gave before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tb_perfadvisor.advice import Value
from tests.support.patches import git_apply, only

PROGRAM = """\
import json
import random

import torch.nn as nn
import torch.nn.functional as F
from torch import manual_seed, optim, rand
from torch.utils.data import DataLoader, TensorDataset

manual_seed(0)
inputs = rand(24, 1, 12, 12)
data = TensorDataset(inputs, (inputs.mean((1, 2, 3)) > 0.5).long())
options = {"batch_size": 8}
loader = DataLoader(data, **options)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.head = nn.Linear(100, 2)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = x.view(x.size(0), -1)
        return F.log_softmax(self.head(x), dim=1)


net = Net()
optimizer = optim.Adam(net.parameters(), lr=0.01)
losses = []
if __name__ == "__main__":
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            output = net(x)
            loss = F.nll_loss(output, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(json.dumps(losses))
"""


# How far each fix may change losses: bfloat16 has eight bits of precision.
FIXES: dict[str, tuple[dict[str, Value], float]] = {
    "loader-workers": ({"workers": 2}, 0.0),
    "no-loader-workers": ({}, 0.0),
    "channels-last": ({}, 1e-4),
    "fused-optimizer": ({"optimizer": "Adam"}, 1e-4),
    "autocast": ({"device": "cpu"}, 0.05),
}
_RUN_ALL = """\
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
"""


@pytest.mark.frameworks
def test_the_losses_stay(tmp_path: Path) -> None:
    paths = [tmp_path / "before.py"]
    paths[0].write_text(PROGRAM, "utf-8")
    for fix, (values, _) in FIXES.items():
        folder = tmp_path / fix
        folder.mkdir()
        git_apply(folder, only(folder, PROGRAM, fix, **values).patch)
        paths.append(folder / "train.py")
        assert paths[-1].read_text("utf-8") != PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", _RUN_ALL, *map(str, paths)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    before, *after = map(json.loads, done.stdout.splitlines())
    assert len(before) == 9
    for (fix, (_, most)), losses in zip(FIXES.items(), after, strict=True):
        assert losses == pytest.approx(before, rel=most), fix
