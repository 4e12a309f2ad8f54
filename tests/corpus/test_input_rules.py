"""Findings of the rules that refine input-stall on real profiles."""

from __future__ import annotations

from pathlib import Path

from tb_perfadvisor import load
from tb_perfadvisor.rules.input.loading import LoaderInMainProcess
from tb_perfadvisor.rules.input.stalls import HostPreprocessing, SlowBatch
from tb_perfadvisor.testing import find


def test_resnet50_gains_what_its_pair_with_workers_shows(corpus: Path) -> None:
    (slow,) = load(corpus / "kineto/resnet50_num_workers_0")
    (fixed,) = load(corpus / "kineto/resnet50_num_workers_4")
    (finding,) = find(LoaderInMainProcess, slow) or ()
    assert finding.saving is not None
    # INDEX: ProfilerSteps of 174.829 ms on average become 139.692 ms.
    gained_ns = 6 * (174_829_000 - 139_692_000)
    assert finding.saving.low_ns <= gained_ns <= finding.saving.high_ns
    assert find(LoaderInMainProcess, fixed) == ()
    assert find(SlowBatch, fixed) == ()
    # Without Python frames, the stages are unknown.
    assert find(HostPreprocessing, slow) is None


def test_owlv2_resizes_images_while_the_device_waits(corpus: Path) -> None:
    (run,) = load(corpus / "tracelens/h100/google_owlv2-large-patch14-ensemble")
    assert len(find(LoaderInMainProcess, run) or ()) == 1
    (finding,) = find(HostPreprocessing, run) or ()
    # INDEX: the fetches cover 51.1 % of the step; they call scipy's zoom on the host.
    assert finding.summary.startswith(
        "Preprocessing (the dataset's own code) makes the device wait 618 ms"
    )
    assert finding.instance == "zoom_shift"
    # Five fetches of 121 to 128 ms and the one that ends the epoch: none stands out.
    assert find(SlowBatch, run) == ()


def test_a_dataset_that_sleeps(corpus: Path) -> None:
    (run,) = load(corpus / "local-torch2.13-cpu/conv_dl0_slow_rich")
    (finding,) = find(HostPreprocessing, run) or ()
    assert finding.saving is not None
    # gen_torch.py sleeps 10 ms for each of the 32 samples of a batch, in four steps. As measured
    # for other data sets, 15 % of the work on samples is expected to stay.
    asleep_ns = 4 * 32 * 10_000_000
    assert finding.saving.high_ns >= asleep_ns > finding.saving.low_ns
    assert finding.saving.expected_ns >= 0.85 * asleep_ns
    assert finding.instance == "sleep"
