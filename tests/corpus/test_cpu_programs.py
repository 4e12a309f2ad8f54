"""What is said about real programs on the CPU, and about loops in the host's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze, load
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.input.loading import InputSharesCores
from tb_perfadvisor.rules.launch.eager import ManyTinyOperators
from tb_perfadvisor.rules.launch.optimizer import OptimizerLoop
from tb_perfadvisor.testing import find


def test_a_single_tensor_optimizer_on_the_cpu(corpus: Path) -> None:
    (run,) = load(corpus / "local-torch2.13-cpu/vit_patchdropout_gather")
    assert not [
        finding for finding in find(ManyTinyOperators, run) or () if "AdamW" in finding.summary
    ]
    (finding,) = find(OptimizerLoop, run) or ()
    # Raw events: 41 of each operator of AdamW in a step, and 10.4 to 11.4 ms in Optimizer.step.
    assert finding.instance == "AdamW.step takes 10.9 ms"
    assert finding.saving is not None
    assert 0 < finding.saving.expected_ns < 3 * 10_400_000
    assert "fused=True" in finding.remedies[0].snippet


def test_segment_anything_encodes_its_masks_one_by_one(corpus: Path) -> None:
    (run,) = load(corpus / "sam-fast/asdf_False_a73da0d1")
    (finding, *_) = find(ManyTinyOperators, run) or ()
    # mask_to_rle_pytorch of segment-anything, which the authors later replaced by one for all
    # masks: it slices and indexes each mask.
    assert "a loop over samples or other elements" in finding.summary
    table = finding.evidence[0]
    assert isinstance(table, Table)
    names = [row[1] for row in table.rows]
    assert {"aten::slice", "aten::select", "aten::eq", "aten::index"} <= set(names)


@pytest.mark.parametrize(
    "name",
    ["local-tf-cpu/keras_prefetch_fast", "local-tf-cpu/keras_mixed_bf16"],
)
def test_input_that_takes_little_is_left_alone(corpus: Path, name: str) -> None:
    (run,) = load(corpus / name)
    assert find(InputSharesCores, run) == ()


def test_the_peak_of_host_memory_is_a_key_number(corpus: Path) -> None:
    report = analyze(corpus / "local-torch2.13-cpu/vit_patchdropout_gather")
    (peak,) = (number for number in report.key_numbers if number.id == "peak-host-memory")
    assert peak.notes == ["since the recording began"]
