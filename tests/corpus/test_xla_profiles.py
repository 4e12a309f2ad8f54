"""First findings on published and recorded profiles of TensorFlow, JAX and TPUs.

Expected numbers are those of the corpus' INDEX.md, of XProf's own tools or of the scripts that
recorded the profiles; the source is named at each assertion.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.contract.model import FindingInfo
from tb_perfadvisor.ingest.xspace.interpret.hlo.operation import parse_operation
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import Trace


@cache
def advice(path: Path) -> Report:
    """The report on a capture."""
    return analyze(path)


def ids(report: Report) -> list[str]:
    """The rules that found something, the best first."""
    return [finding.rule_id for finding in report.findings]


def of(report: Report, rule_id: str) -> FindingInfo:
    """What a rule found."""
    return next(finding for finding in report.findings if finding.rule_id == rule_id)


def share(found: FindingInfo) -> float:
    """What it expects to save of a step."""
    assert found.saving is not None
    return found.saving.share_expected


def most(found: FindingInfo) -> float:
    """What it saves of a step at most."""
    assert found.saving is not None
    return found.saving.share_high


def test_slow_input_of_keras_is_named_down_to_the_iterator(corpus: Path) -> None:
    report = advice(corpus / "local-tf-cpu/keras_slow_input")
    assert ids(report)[0] == "input-stall"
    preprocessing = of(report, "host-preprocessing")
    assert preprocessing.refines == "input-stall"
    assert preprocessing.title == "Take work out of the input pipeline: MapAndBatch"
    # gen_tf.py maps a numpy_function that sleeps 2 ms over 32 samples, one at a time, and does not
    # prefetch; TensorFlow's autotuning adds a prefetch of its own.
    assert {"python-fed-input", "tfdata-sequential-map"} <= set(ids(report))
    assert "(32 calls per step)" in of(report, "python-fed-input").summary
    # XProf: "No step time measured" for all recordings of Keras.
    assert (report.steps.source, report.steps.used) == ("Profiled batch", 5)


def test_every_second_step_loses_twenty_milliseconds(corpus: Path) -> None:
    report = advice(corpus / "local-tf-cpu/custom_loop_trace_steps")
    assert ids(report) == ["periodic-spikes"]
    assert report.steps.used == 6
    spikes = report.findings[0]
    # gen_tf.py sleeps 20 ms in every second step, which no event shows.
    assert spikes.summary == (
        "Every 2nd step (1, 3, 5) takes 20.4 ms longer (unexplained): the host does something"
        " unrecorded."
    )
    assert spikes.saving is not None
    assert spikes.saving.expected_ns == pytest.approx(20e6 / 2, rel=0.05)


def test_a_sleeping_host_holds_jax_up(corpus: Path) -> None:
    report = advice(corpus / "local-jax-cpu/train_steps_host_bound")
    # INDEX: 75 % of each step is host sleep. XProf calls it not input-bound, and says no more.
    assert ids(report)[0] == "python-overhead"
    assert "mostly in time.sleep" in report.findings[0].summary
    # Counted in the file: beside 181.7 ms of sleep, 12.1 ms of a lambda that makes the batch.
    assert share(report.findings[0]) == pytest.approx(0.75 * (181.7 + 12.1) / 181.7, abs=0.04)


def test_collectives_of_four_virtual_devices_are_seen(corpus: Path) -> None:
    report = advice(corpus / "local-jax-cpu/train_dp4_sharded")
    communication = of(report, "exposed-communication")
    # Counted in the file: 24 executions of all-reduce.4 in six steps, one on each of the four
    # devices.
    assert "(4 collectives per step)" in communication.summary
    # All four devices are threads of the process: who comes last waits for nobody.
    assert communication.summary.endswith(
        "of the time in collectives is waiting for other devices."
    )
    # INDEX: XProf's step, 20.0 ms.
    assert report.overview.step_time_ns == pytest.approx(20.0e6, rel=0.02)


def test_a_tpu_that_streams_from_its_host(corpus: Path) -> None:
    report = advice(corpus / "xprof-test/plugins/profile/tpu_inference_2_2cc1243f")
    # INDEX: about 97 % of the XLA ops' time is copy-done; every dimension fits its tile.
    assert ids(report) == ["host-offload-copies"]
    assert most(report.findings[0]) == pytest.approx(0.97, abs=0.005)
    outcome = next(outcome for outcome in report.outcomes if outcome.rule_id == "padded-shapes")
    assert outcome.status == "passed"


def test_idle_ranks_above_casts_on_one_of_eight_gpus(corpus: Path) -> None:
    report = advice(corpus / "tracelens-jax/jax08_attention")
    assert ids(report)[0] == "eager-operators"
    # INDEX: 3.76 of 32.6 ms busy, a fusion of converts 41 % of it.
    cast = of(report, "cast-overhead")
    assert cast.severity == "low"
    assert cast.summary.endswith("40.6 % of the device's busy time.")
    assert of(report, "unused-devices").summary.startswith("7 of 8 devices")
    assert report.overview.device_busy_share == pytest.approx(3.76 / 32.6, abs=0.01)


def test_layouts_matter_little_to_a_device_that_idles(corpus: Path) -> None:
    report = advice(corpus / "tracelens-jax/jax08_conv")
    layout = of(report, "layout-conversion")
    # INDEX: transposes between NCHW and NHWC are half of kernel time, of a device that is busy
    # 3.5 of some 100 ms.
    assert layout.severity == "low"
    assert "46.5 % of the device's busy time" in layout.summary
    assert share(layout) < 0.02


def test_two_of_eight_gpus_work(corpus: Path) -> None:
    report = advice(corpus / "xprof-demo/plugins/profile/GPU-multi-worker")
    # A MirroredStrategy names replicas: it uses them all, as far as the profile tells.
    assert "unused-devices" not in ids(report)
    # XProf: a step of 21.3 ms.
    assert report.overview.step_time_ns == pytest.approx(21.3e6, rel=0.002)


def test_results_from_before_events_were_kept(corpus: Path) -> None:
    report = advice(corpus / "xprof-demo/plugins/profile/GPU-input-bound")
    # The files' own: input 81.37 %, 11 steps of 1,114.499 ms on average.
    assert ids(report)[0] == "input-stall"
    assert most(report.findings[0]) == pytest.approx(0.8137, abs=0.001)
    assert report.steps.used == 11
    assert report.overview.step_time_ns == pytest.approx(1114.499e6, rel=1e-5)


def training(corpus: Path) -> Trace:
    """A training on a TPU v5 by XProf's table of it: each operation once, as long as all its runs.

    Its profile is not published, but for this table: names, texts, categories and times.
    """
    path = corpus / "xprof-golden/data_tpu-training_hlo_stats_tpu_training.json.gz"
    table = json.loads(gzip.decompress(path.read_bytes()))
    labels = [column["label"] for column in table["cols"]]
    builder, at = (
        TraceBuilder("jax").device(
            "TPU v5",
            kind="tpu",
            reported_flop_per_s=233.4e12,
            reported_bandwidth_bytes_per_s=2765e9,
        ),
        0,
    )
    for row in table["rows"]:
        facts = dict(zip(labels, (cell["v"] for cell in row["c"]), strict=True))
        category, path_of = facts["HLO op category"], facts["Framework op name"]
        name, text = facts["HLO op name"], facts["HLO op text"]
        operation = parse_operation(text, name=name, category=category, path=path_of)
        took_us = facts["Total self time (us)"]
        work = {
            "flop": facts["Model GFLOP/s"] * took_us * 1e3,
            "traffic_bytes": facts["Measured memory BW (GiB/s)"] * 2**30 * took_us / 1e6,
        }
        hlo = {"text": text, "category": category, "path": path_of, **work}
        attributes: dict[str, dict[str, Any]] = {
            "KERNEL": {"kernel": {"family": operation.family, "precision": operation.precision}},
            "COPY": {"copy": {"direction": operation.copy_direction}},
            "COLLECTIVE": {"collective": {"operation": operation.collective}},
        }
        symbol = Symbol(operation.kind, name, hlo=hlo, **attributes.get(operation.kind.name, {}))
        took_ns = round(took_us * 1000)
        if took_ns and not operation.is_container:
            builder.add(symbol, at, at + took_ns, device=0)
            at += took_ns
    return builder.step(0, 0, at).build()


def test_operations_of_a_real_training_on_a_tpu(corpus: Path) -> None:
    report = analyze(training(corpus))
    # What is exposed and what is shuffled: 26.6 and 14.2 % of the time at most.
    assert ids(report)[:2] == ["exposed-communication", "data-shuffling"]
    # By the table's categories, in microseconds: all-reduce-scatter fusions 356,577, all-gather
    # 105,302, all-to-all 4,563, all-reduce 3,084; of 574,041 for custom fusions all but 6,654 are
    # halves of asynchronous collectives. Everything takes 3,896,912 (loops themselves left out).
    exposed_us = 356_577 + 105_302 + 4_563 + 3_084 + 574_041 - 6_654
    exposed = of(report, "exposed-communication")
    share = report.overview.exposed_communication_share
    assert share == pytest.approx(exposed_us / 3_896_912, abs=1e-4)
    # Of one device alone, how much of that is waiting for the others is unknown.
    assert (exposed.saving, exposed.severity) == (None, "medium")
    # 14 asynchronous ones, 8 + 4 + 2 + 5 others.
    assert "(33 collectives per step)" in exposed.summary
    # dynamic-update-slice 554,431 and sort 211: gradients of 16 layers, stacked by a scan along a
    # dimension that the layout has within its tiles, at 35 to 40 GiB/s of HBM's 2,575.
    shuffling = of(report, "data-shuffling")
    assert shuffling.saving is not None
    # At best, what makes the slices does not write them: half of the bytes of copy.488 to copy.490
    # (36,658 us), and of convert.760 and convert.761 (1,153 us), whose 16 bits fill two rows.
    high_us = 554_431 + 211 + (36_658 + 1_153) / 2
    assert shuffling.saving.share_high == pytest.approx(high_us / 3_896_912, abs=1e-4)
    assert "most in dynamic-update-slice.33." in shuffling.summary


def test_a_core_that_waits_in_its_infeed(corpus: Path) -> None:
    report = advice(corpus / "xprof-demo-data/plugins/profile/demo_d75cca1a")
    # XProf's own table of the steps of a TPU: 84.8 % of 141.8 ms.
    infeed = of(report, "infeed-wait")
    assert infeed.refines == "input-stall"
    assert most(infeed) == pytest.approx(0.848, abs=0.0005)
    assert report.overview.step_time_ns == pytest.approx(141.8e6, rel=0.001)
