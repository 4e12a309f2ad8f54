"""What the real torch.compile records, on a CPU; skipped where torch cannot be imported."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.rules.launch.graph_breaks import GraphBreaks
from tb_perfadvisor.rules.launch.recompilation import Recompilation
from tb_perfadvisor.signals import Signals

PROGRAM = """
import sys, torch
from tb_perfadvisor.instrument.torch import profile
torch.set_num_threads(1)
layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
def forward(x):
    x = layers[0](x).relu()
    {between}
    x = layers[1](x).relu()
    {between}
    x = layers[2](x).relu()
    {between}
    return layers[3](x).mean()
compiled = torch.compile(forward, backend="aot_eager", dynamic=False)
with profile(sys.argv[1], wait=0, warmup=2, active=4) as profiler:
    for i in range(6):
        compiled(torch.randn({length}, 64)).backward()
        profiler.step()
"""


def recorded(directory: Path, between: str = "pass", length: str = "32") -> Signals:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    program = PROGRAM.format(between=between, length=length)
    done = subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Signals(load(directory)[0])


def test_graph_breaks_are_counted(tmp_path: Path) -> None:
    signals = recorded(tmp_path, between="torch._dynamo.graph_break()")
    # How much they cost depends on what else the machine does.
    (finding,) = GraphBreaks({"minimum_share": 0.0}).check(signals)
    assert "3 breaks per step" in finding.summary


def test_a_whole_graph_has_none(tmp_path: Path) -> None:
    assert list(GraphBreaks({"minimum_share": 0.0}).check(recorded(tmp_path))) == []


def test_changing_lengths_are_named(tmp_path: Path) -> None:
    (finding,) = Recompilation().check(recorded(tmp_path, length="32 + i"))
    assert "4 of 4 steps compile" in finding.summary
    assert "4 shapes (34 × 64, 35 × 64, 36 × 64, …)" in finding.summary
