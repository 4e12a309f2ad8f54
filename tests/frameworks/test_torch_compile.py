"""What the real torch.compile records, on a CPU; skipped where torch cannot be imported."""

from __future__ import annotations

from pathlib import Path

from tb_perfadvisor import load
from tb_perfadvisor.rules.launch.compilation import GraphBreaks, Recompilation
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.launch.compiled_regions import compiled_regions, graph_breaks
from tb_perfadvisor.signals.recording.availability import why_missing
from tests.support.recording import run

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
    run(PROGRAM.format(between=between, length=length), "torch", directory, str(directory))
    return Signals(load(directory)[0])


def steps_of(signals: Signals) -> int:
    """Four; on a busy machine, PyTorch may miss the begin of the first one."""
    steps = len(signals.steps)
    assert steps in (3, 4)
    return steps


def test_graph_breaks_are_counted(tmp_path: Path) -> None:
    signals = recorded(tmp_path, between="torch._dynamo.graph_break()")
    assert len(graph_breaks(signals).row) == 3 * steps_of(signals)
    assert set(compiled_regions(signals).frame.tolist()) == {0, 1, 2, 3}
    # What computes in a region on the CPU is not recorded: the rule makes no claim.
    assert Need.DEVICE_EVENTS in GraphBreaks.needs
    assert why_missing(signals, Need.DEVICE_EVENTS) is not None


def test_a_whole_graph_has_none(tmp_path: Path) -> None:
    signals = recorded(tmp_path)
    assert len(compiled_regions(signals).row) == steps_of(signals)
    assert not compiled_regions(signals).is_resumed.any()


def test_changing_lengths_are_named(tmp_path: Path) -> None:
    signals = recorded(tmp_path, length="32 + i")
    steps = steps_of(signals)
    (finding,) = Recompilation().check(signals)
    assert f"{steps} of {steps} steps compile" in finding.summary
    # Of the steps 2 to 5.
    shapes = [f"{32 + number} × 64" for number in range(6 - steps, 6)]
    listed = ", ".join([*shapes[:3], "…"][:steps])
    assert f"{steps} shapes ({listed})" in finding.summary
