"""Debugging modes of the real PyTorch, recorded on a CPU; skipped where it cannot be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.rules.launch.switched_on import DebugMode
from tb_perfadvisor.signals import Signals
from tests.support.recording import run

PROGRAM = """
import sys, torch
from tb_perfadvisor.instrument.torch import profile
{mode}
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(8)))
with profile(sys.argv[1], wait=0, warmup=1, active=8) as profiler:
    for _ in range(9):
        model.zero_grad()
        model(torch.randn(8, 32)).sum().backward()
        profiler.step()
"""


@pytest.mark.parametrize(
    ("mode", "phrase"),
    [
        ("", None),
        ("torch.autograd.set_detect_anomaly(True)", "anomaly detection"),
        ("torch.use_deterministic_algorithms(True)", "deterministic algorithms"),
        (
            "torch.use_deterministic_algorithms(True)\n"
            "torch.utils.deterministic.fill_uninitialized_memory = False",
            None,
        ),
    ],
)
def test_a_mode_is_found_when_it_is_on(mode: str, phrase: str | None, tmp_path: Path) -> None:
    run(PROGRAM.format(mode=mode), "torch", tmp_path, str(tmp_path))
    # How much it costs depends on what else the machine does.
    rule = DebugMode({"minimum_share": 0.0})
    found = [finding.summary for finding in rule.check(Signals(load(tmp_path)[0]))]
    assert len(found) == (0 if phrase is None else 1)
    assert phrase is None or phrase in found[0]
