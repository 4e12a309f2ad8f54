from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.placement.devices import UnusedDevices
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace import CopyDirection, EventKind, Framework, Trace

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


def test_a_device_that_gets_copies_may_be_in_use() -> None:
    """A short recording may hold the copy of a batch, and not the work on it."""
    builder = TraceBuilder("tensorflow").device(GPU, multiprocessors=80)
    builder.device(GPU, multiprocessors=80).launch(0, ms(1)).kernel("k", ms(1), ms(2))
    assert len(find(UnusedDevices, builder.build()) or ()) == 1
    builder.copy(CopyDirection.HOST_TO_DEVICE, ms(2), ms(3), device=1)
    assert find(UnusedDevices, builder.build()) == ()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # tf.distribute numbers replicas from 0, as on the recorded BERT: replica 6 is the seventh.
        ("replica_6/bert/dense/MatMul:MatMul", 0),
        ("replica_0/bert/dense/MatMul:MatMul", 1),
        ("bert/dense/MatMul:MatMul", 1),
    ],
)
def test_replicas_use_devices_that_a_short_recording_lacks(name: str, count: int) -> None:
    builder = TraceBuilder("tensorflow")
    for _ in range(8):
        builder.device(GPU, multiprocessors=80)
    builder.host(EventKind.OPERATOR, name, 0, ms(1))
    builder.launch(0, ms(1)).kernel("k", ms(1), ms(2), device=0)
    assert len(find(UnusedDevices, builder.build()) or ()) == count


def test_tracks_without_a_description_are_not_devices() -> None:
    assert find(UnusedDevices, traced(0, described=1)) == ()


def test_in_pytorch_other_devices_belong_to_other_processes() -> None:
    assert find(UnusedDevices, traced(0, framework="pytorch")) is None
    # nn.DataParallel drives several devices from one process.
    assert len(find(UnusedDevices, traced(0, 1, framework="pytorch")) or ()) == 1


@pytest.mark.parametrize(
    ("path", "beginning"),
    [
        # INDEX.md: "1 of 8 MI300X used".
        ("tracelens-jax/jax08_attention", "7 of 8 devices"),
    ],
)
def test_recorded_profiles(corpus: Path, path: str, beginning: str) -> None:
    findings = {finding.rule_id: finding for finding in analyze(corpus / path).findings}
    assert findings["unused-devices"].summary.startswith(beginning)


def test_eight_replicas_of_which_21_ms_show_two(corpus: Path) -> None:
    """Kernels on GPU 4 and 6 alone, a copy to GPU 1, and operators of replicas 1, 4 and 6."""
    report = analyze(corpus / "xprof-demo/plugins/profile/GPU-multi-worker")
    assert "unused-devices" not in {finding.rule_id for finding in report.findings}


def test_a_recording_without_descriptions_of_other_gpus(corpus: Path) -> None:
    path = "tracelens-jax/test_data_jax_te_fused_attn_categorization"
    findings = {finding.rule_id for finding in analyze(corpus / path).findings}
    assert "unused-devices" not in findings
