from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.api import analyze
from tb_perfadvisor.rules.placement.unused_devices import UnusedDevices
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace import CopyDirection, Framework, Trace

GPU = "Tesla V100-SXM2-16GB"


def traced(*used: int, framework: Framework = "jax", described: int = 4) -> Trace:
    """Four GPUs of which some run a kernel."""
    builder = TraceBuilder(framework)
    for index in range(4):
        builder.device(GPU, multiprocessors=80 if index < described else None)
    for index in used:
        builder.launch(ms(index), ms(index + 1))
        builder.kernel("fusion", ms(index), ms(index + 1), device=index)
    return builder.build()


def test_lists_each_device_that_runs_nothing() -> None:
    checked = check_rule(UnusedDevices, slow=traced(0, 2), fixed=traced(0, 1, 2, 3))
    (finding,) = checked.findings
    assert finding.summary.startswith("2 of 4 devices")
    assert finding.severity == "medium"


def test_one_unused_device_of_four_has_low_severity() -> None:
    (finding,) = find(UnusedDevices, traced(0, 1, 2)) or ()
    assert finding.severity == "low"


def test_a_device_that_only_copies_is_unused() -> None:
    builder = TraceBuilder("tensorflow").device(GPU, multiprocessors=80)
    builder.device(GPU, multiprocessors=80).launch(0, ms(1)).kernel("k", ms(1), ms(2))
    builder.copy(CopyDirection.HOST_TO_DEVICE, ms(2), ms(3), device=1)
    assert len(find(UnusedDevices, builder.build()) or ()) == 1


def test_tracks_without_a_description_are_not_devices() -> None:
    assert find(UnusedDevices, traced(0, described=1)) == ()


def test_in_pytorch_other_devices_belong_to_other_processes() -> None:
    assert find(UnusedDevices, traced(0, framework="pytorch")) is None
    # nn.DataParallel drives several devices from one process.
    assert len(find(UnusedDevices, traced(0, 1, framework="pytorch")) or ()) == 1


@pytest.mark.parametrize(
    ("path", "beginning"),
    [
        # INDEX.md: "1 of 8 MI300X used"; "2 hosts x 8 V100", kernels on GPU 4 and 6 alone.
        ("tracelens-jax/jax08_attention", "7 of 8 devices"),
        ("xprof-demo/plugins/profile/GPU-multi-worker", "6 of 8 devices"),
    ],
)
def test_recorded_profiles(corpus: Path, path: str, beginning: str) -> None:
    findings = {finding.rule_id: finding for finding in analyze(corpus / path).findings}
    assert findings["unused-devices"].summary.startswith(beginning)


def test_a_recording_without_descriptions_of_other_gpus(corpus: Path) -> None:
    path = "tracelens-jax/test_data_jax_te_fused_attn_categorization"
    findings = {finding.rule_id for finding in analyze(corpus / path).findings}
    assert "unused-devices" not in findings
