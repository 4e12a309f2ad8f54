"""The model of fusion against TorchInductor; skipped where torch cannot be imported."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cost_models.fusion_model import operands_in
from tb_perfadvisor import load
from tb_perfadvisor.signals.work.fusible_work import fused_traffic

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
PROGRAM = """
import sys
from pathlib import Path
from cost_models import fusion_programs
wanted = ("_layer_norm_residual", "_gated_mlp", "_bias_gelu")
fusion_programs.TUNED = tuple(p for p in fusion_programs.TUNED if p.__name__ in wanted)
fusion_programs.HELD_OUT = ()
fusion_programs.record(Path(sys.argv[1]))
"""


@pytest.mark.nightly
def test_torch_inductor_moves_the_bytes_that_the_model_foretells(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, timeout=600)
    counted = json.loads((tmp_path / "inductor.json").read_text())
    assert len(counted) == 6
    for name, found in counted.items():
        (run,) = load(tmp_path / f"{name}.pt.trace.json")
        traffic = fused_traffic(operands_in(run.traces[0]))
        saved = traffic.now_bytes.sum() - found["bytes"]
        low = traffic.now_bytes.sum() - traffic.strict_bytes.sum()
        assert low <= saved * 1.01, name
        if name.endswith("forward"):
            assert traffic.fused_bytes.sum() == pytest.approx(found["bytes"], rel=0.01), name
