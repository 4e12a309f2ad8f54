"""What the real torch.compile records, on a CPU; skipped where torch cannot be imported."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.rules.launch.compilation import GraphBreaks, Recompilation
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.launch.compiled_regions import compiled_regions, graph_breaks
from tb_perfadvisor.signals.recording.availability import why_missing

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
    assert len(graph_breaks(signals).row) == 3 * 4
    assert set(compiled_regions(signals).frame.tolist()) == {0, 1, 2, 3}
    # What computes in a region on the CPU is not recorded: the rule makes no claim.
    assert Need.DEVICE_EVENTS in GraphBreaks.needs
    assert why_missing(signals, Need.DEVICE_EVENTS) is not None


def test_a_whole_graph_has_none(tmp_path: Path) -> None:
    signals = recorded(tmp_path)
    assert len(compiled_regions(signals).row) == 4
    assert not compiled_regions(signals).is_resumed.any()


def test_changing_lengths_are_named(tmp_path: Path) -> None:
    (finding,) = Recompilation().check(recorded(tmp_path, length="32 + i"))
    assert "4 of 4 steps compile" in finding.summary
    assert "4 shapes (34 × 64, 35 × 64, 36 × 64, …)" in finding.summary
