"""Expected findings on real profiles, in the JSON of the command line.

Expected numbers are those of other tools and of scripts independent of this package (the corpus'
INDEX.md); the source is named at each assertion.
"""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.signals.tpu.padding import padding_of
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tests.support.command import run

Json = dict[str, Any]


@cache
def _document(path: Path) -> Json:
    document: Json = json.loads(run("analyze", path, "--format", "json").stdout)
    return document


def _report(corpus: Path, path: str) -> Json:
    (report,) = _document(corpus / path)["reports"]
    return report  # type: ignore[no-any-return]


def _rules(report: Json) -> list[str]:
    return [finding["rule_id"] for finding in report["findings"]]


def _finding(report: Json, rule_id: str) -> Json:
    return next(finding for finding in report["findings"] if finding["rule_id"] == rule_id)


def _severities(report: Json, rule_id: str) -> set[str]:
    return {finding["severity"] for finding in report["findings"] if finding["rule_id"] == rule_id}


def _part(report: Json, cause: str) -> float:
    parts = report["overview"]["breakdown"]
    return next((part["share"] for part in parts if part["cause"] == cause), 0.0)


def test_resnet50_without_workers_is_input_bound(corpus: Path) -> None:
    report = _report(corpus, "kineto/resnet50_num_workers_0")
    assert _rules(report)[0] == "input-stall"
    # The PyTorch plugin's own golden line: DataLoader 33.37 % of the average step.
    # With workers, the step may wait elsewhere: its pair took 35.2 of 175 ms less.
    saving = report["findings"][0]["saving"]
    assert saving["share_low"] < 0.201 < saving["share_high"]
    assert saving["share_expected"] == pytest.approx(0.25, abs=0.01)
    assert saving["share_high"] == pytest.approx(0.3337, abs=0.005)
    assert report["overview"]["input_wait_share"] == pytest.approx(0.3337, abs=0.005)
    # The same: Kernel 55.51 %.
    assert report["overview"]["device_compute_share"] == pytest.approx(0.5551, abs=0.01)


def test_resnet50_with_workers_is_bound_by_fp32_on_a_v100(corpus: Path) -> None:
    report = _report(corpus, "kineto/resnet50_num_workers_4")
    assert _severities(report, "input-stall") <= {"low"}
    # First, though the recorded host sets the pace: a good part of its time is recording.
    first = report["findings"][0]
    assert first["rule_id"] == "full-precision-compute"
    assert "profiler-overhead" in {note["id"] for note in report["notes"]}
    # INDEX: 68 % of kernel time is eligible, and none of it on tensor cores. All is in 32 bits.
    said = re.search(r"([\d.]+) ms of each step .* compute, ([\d.]+) ms of it", first["summary"])
    assert said is not None
    assert float(said[2]) / float(said[1]) == pytest.approx(0.68, abs=0.03)
    table = next(
        evidence for evidence in first["evidence"] if "tensor cores" in evidence.get("title", "")
    )
    assert table["rows"][0][:2] == ["used", 0]
    # Golden: Kernel 70.28 %, DataLoader 0.84 %.
    assert report["overview"]["device_compute_share"] == pytest.approx(0.7028, abs=0.01)
    assert report["overview"]["input_wait_share"] == pytest.approx(0.0084, abs=0.002)


def test_owlv2_on_an_h100_is_input_bound_and_already_16_bit(corpus: Path) -> None:
    report = _report(corpus, "tracelens/h100/google_owlv2-large-patch14-ensemble")
    assert _rules(report)[0] == "input-stall"
    # INDEX: DataLoader covers 51.1 % of the ProfilerStep.
    assert report["overview"]["input_wait_share"] == pytest.approx(0.511, abs=0.002)
    assert report["overview"]["precision"]["16"] > 0.9
    assert "full-precision-compute" not in _rules(report)


@pytest.mark.parametrize("name", ["gaunernst_bert-small-uncased", "Falconsai_nsfw_image_detection"])
def test_small_models_on_an_h100_are_launch_bound(corpus: Path, name: str) -> None:
    report = _report(corpus, f"tracelens/h100/{name}")
    assert _rules(report)[0] == "launch-bound"
    assert report["findings"][0]["severity"] == "high"


def test_keras_with_slow_input(corpus: Path) -> None:
    report = _report(corpus, "local-tf-cpu/keras_slow_input")
    assert report["steps"]["used"] == 5
    assert _rules(report)[0] == "input-stall"
    # INDEX: IteratorGetNext covers 79.1 % of the five steps. 1.7 % of them has no name, and half of
    # it is expected to go with the wait at most.
    assert report["overview"]["input_wait_share"] == pytest.approx(0.791, abs=0.001)
    assert 0.791 <= report["findings"][0]["saving"]["share_expected"] <= 0.791 + 0.017 / 2


def test_keras_with_prefetch(corpus: Path) -> None:
    report = _report(corpus, "local-tf-cpu/keras_prefetch_fast")
    assert report["steps"]["used"] == 5
    assert "input-stall" not in _rules(report)
    assert "high" not in {finding["severity"] for finding in report["findings"]}


def test_jax_without_annotations_has_inferred_steps_and_says_so(corpus: Path) -> None:
    report = _report(corpus, "local-jax-cpu/train_no_step_annotation")
    # gen_jax.py runs six steps, but what followed the sixth was not recorded. In the trace.json.gz,
    # the first call begins at 1,522.071 us, and the sixth at 42,343.087.
    assert report["steps"]["used"] == 5
    assert report["overview"]["step_time_ns"] == pytest.approx(40_821_016 / 5, rel=1e-5)
    assert report["steps"]["is_inferred"]
    assert "inferred-steps" in {note["id"] for note in report["notes"]}


def test_a_healthy_profile_yields_nothing_high(corpus: Path) -> None:
    report = _report(corpus, "tracelens-jax/test_data_jax_te_fused_attn_categorization")
    assert "high" not in {finding["severity"] for finding in report["findings"]}


def test_a_busy_device_may_still_run_its_decoder_in_eager_mode(corpus: Path) -> None:
    # INDEX: busy for 92.6 %. Half of the kernel time is eager elementwise operators, copies and
    # norms of the mask decoder, which other versions of the program compile.
    report = _report(corpus, "sam-fast/asdf_True_02c6e091")
    high = [finding for finding in report["findings"] if finding["severity"] == "high"]
    assert [finding["rule_id"] for finding in high] == ["unfused-operators"]


def test_no_cuda_advice_for_another_accelerator(corpus: Path) -> None:
    report = _report(corpus, "hta/mtia_inference_trace/4c9b6782")
    remedies = [
        remedy["text"] + (remedy["snippet"] or "")
        for finding in report["findings"]
        for remedy in finding["remedies"]
    ]
    advice = " ".join([*remedies, *(note["remedy"] for note in report["notes"])])
    assert not re.search(r"(?i)cuda|cupti|cudnn|nvidia|tensor core|tf32", advice)


def test_what_only_pytorch_s_operators_tell_is_not_passed_elsewhere(corpus: Path) -> None:
    outcomes = _report(corpus, "tracelens-jax/jax08_attention")["outcomes"]
    status = {outcome["rule_id"]: outcome["status"] for outcome in outcomes}
    rules = ("backward-synchronization", "unfused-optimizer", "unfused-attention")
    assert {status[rule] for rule in rules} == {"not_applicable"}


def test_the_legacy_profiler_s_own_waits_are_not_blamed_on_the_user(corpus: Path) -> None:
    report = _report(corpus, "kineto-old/resnet50_autograd_api_num_workers_0")
    # INDEX: 357 cudaEventSynchronize of 424 ms, of the profiler itself.
    assert "device-synchronization" not in _rules(report)
    assert "ProfilerStep" not in report["steps"]["source"]


def test_a_busy_device_may_idle_most_of_a_step(corpus: Path) -> None:
    report = _report(corpus, "tracelens/h100/facebook_timesformer-base-finetuned-k400")
    # INDEX: busy 99.0 % of its span of 159.992 ms, and 41.4 % of the step of 382.536 ms.
    overview = report["overview"]
    assert overview["device_busy_share"] == pytest.approx(0.414, abs=0.001)
    assert overview["device_busy_share_of_span"] == pytest.approx(0.990, abs=0.001)


def test_sam_fast_numbers(corpus: Path) -> None:
    overview = _report(corpus, "sam-fast/asdf_True_02c6e091")["overview"]
    # INDEX: busy 92.6 %, 87.3 % of kernel time low-precision by name.
    assert overview["device_busy_share"] == pytest.approx(0.926, abs=0.02)
    assert overview["precision"]["16"] == pytest.approx(0.873, abs=0.05)


def test_segment_anything_waits_seven_thousand_times(corpus: Path) -> None:
    report = _report(corpus, "sam-fast/asdf_False_a73da0d1")
    assert {"device-synchronization", "full-precision-compute"} <= set(_rules(report)[:3])
    finding = _finding(report, "device-synchronization")
    # INDEX: 7,023 cudaStreamSynchronize. The last returns after all work and holds nothing up.
    assert ": 7,022 waits in all, " in finding["title"]
    table = finding["evidence"][0]
    keys = [column["key"] for column in table["columns"]]
    rows = [dict(zip(keys, row, strict=True)) for row in table["rows"]]
    assert sum(row["count"] for row in rows) == 7022
    by_operator = {(row["operator"], row["cause"]): row["count"] for row in rows}
    # Counted in the file by hand: synchronizations by the operators around them.
    wanted = {
        ("aten::is_nonzero > aten::_local_scalar_dense", "tensors as conditions (if x:)"): 1332,
        ("aten::index > aten::nonzero", "x[mask]"): 1444,
        ("aten::item > aten::_local_scalar_dense", ".item()"): 66,
        ("aten::index_put_ > aten::nonzero", "x[mask]"): 48,
    }
    assert {key: by_operator[key] for key in wanted} == wanted


def test_segment_anything_in_16_bits_is_bound_by_the_host(corpus: Path) -> None:
    report = _report(corpus, "sam-fast/asdf_True_10b61b2f")
    # Launches or waits first, and both named; between them what may be unrecorded host code.
    assert _rules(report)[0] in {"launch-bound", "device-synchronization"}
    general = [finding["rule_id"] for finding in report["findings"] if not finding["refines"]]
    assert {"launch-bound", "device-synchronization"} <= set(general[:3])
    assert _severities(report, "full-precision-compute") <= {"low"}


def test_late_launches_come_first(corpus: Path) -> None:
    # INDEX: GPU idle 76 %, and 24 cudaEventSynchronize that cost next to nothing.
    report = _report(corpus, "hta/nccl_parser_config")
    assert _rules(report)[0] == "launch-bound"
    assert _severities(report, "device-synchronization") == set()


def test_tpu_inference_has_four_chips_and_steps_from_modules(corpus: Path) -> None:
    report = _report(corpus, "xprof-test/plugins/profile/tpu_inference_2_2cc1243f")
    device = report["workers"][0]["device"]
    assert (device["name"], device["visible"]) == ("TPU v6 Lite", 4)
    assert "module" in report["steps"]["source"]
    # The peaks are the plane's own: no note that the device is unknown.
    assert "unknown-device" not in {note["id"] for note in report["notes"]}
    # INDEX: about 97 % of the XLA ops' time is copy-done.
    assert report["overview"]["exposed_copy_share"] == pytest.approx(0.97, abs=0.02)


def test_queued_idle_is_no_synchronization(corpus: Path) -> None:
    report = _report(corpus, "hta/negative_queue_length_values_check/d71a78d5")
    # INDEX: GPU idle 64.4 %, and 1,890 aten::item that induce almost none of it.
    assert _part(report, "queued") > 0.6
    assert _severities(report, "device-synchronization") <= {"low"}
    # INDEX: exposed collectives 15.0 % of the GPU's span.
    assert report["overview"]["exposed_communication_share"] == pytest.approx(0.150, abs=0.005)


@pytest.mark.parametrize(
    ("path", "idle"),
    [
        # TraceLens' own gpu_timeline.csv: idle time of the GPU's span, in percent.
        ("tracelens/mi210/gpu_only_trace/d1472ed2", 10.64),
        ("hta/trace_diff_control", 16.20),  # HTA 0.5.0
        ("hta/trace_diff_test", 7.47),  # HTA trims to whole iterations: looser
    ],
)
def test_busy_share_against_other_tools(corpus: Path, path: str, idle: float) -> None:
    report = _report(corpus, path)
    assert report["overview"]["device_busy_share"] == pytest.approx(1 - idle / 100, abs=0.04)


@pytest.mark.parametrize(
    "name", ["google_owlv2-large-patch14-ensemble", "Falconsai_nsfw_image_detection"]
)
def test_peak_memory_against_the_plain_file(corpus: Path, name: str) -> None:
    folder = corpus / "tracelens" / "h100" / name
    (file,) = folder.glob("*.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    # Device type 1 is CUDA (c10/core/DeviceType.h); totals are those after each change.
    totals = [
        (event["args"]["Total Allocated"], event["args"]["Total Reserved"])
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == 1
    ]
    memory = _report(corpus, f"tracelens/h100/{name}")["overview"]["memory"]
    assert memory["peak_allocated_bytes"] == max(allocated for allocated, _ in totals)
    assert memory["peak_reserved_bytes"] == max(reserved for _, reserved in totals)


def test_a_slow_cpu_profile_is_never_told_to_use_16_bits(corpus: Path) -> None:
    for path in ("local-torch2.13-cpu/mlp_fp32", "local-torch2.13-cpu/conv_dl0_slow_rich"):
        report = _report(corpus, path)
        assert report["overview"]["device_compute_share"] is None
        assert report["overview"]["precision"] is None
        outcome = next(
            outcome
            for outcome in report["outcomes"]
            if outcome["rule_id"] == "full-precision-compute"
        )
        assert outcome["status"] == "not_applicable"


def test_the_whole_corpus_ends_without_a_traceback_and_sums_exactly(
    corpus_document: dict[str, Any],
) -> None:
    document = corpus_document
    # Every capture and every file that claims to be one is accounted for.
    assert len(document["reports"]) > 80
    for report in document["reports"]:
        overview = report["overview"]
        total = sum(part["total_ns"] for part in overview["breakdown"])
        assert total == overview["window_ns"], report["run"]
        failed = [outcome for outcome in report["outcomes"] if outcome["status"] == "failed"]
        assert not failed, (report["run"], failed)
    reasons = {entry["path"]: entry["reason"] for entry in document["rejected"]}
    assert all(reasons.values())
    assert any("ExecutionTrace" in reason for reason in reasons.values())
    assert any(path.endswith("host.xplane.pb") for path in reasons)


def test_a_real_training_wastes_nothing_on_padding(corpus: Path) -> None:
    # XProf's own table of a training on a TPU v5: each operation's text and time. All its large
    # arrays fit their tiles.
    path = corpus / "xprof-golden/data_tpu-training_hlo_stats_tpu_training.json.gz"
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        document = json.load(stream)
    names = [column["label"] for column in document["cols"]]
    text, time = names.index("HLO op text"), names.index("Total self time (us)")
    total = wasted = 0.0
    for row in document["rows"]:
        instruction = parse_instruction(row["c"][text]["v"])
        assert instruction is not None
        padding = padding_of(instruction)
        total += row["c"][time]["v"]
        wasted += row["c"][time]["v"] * (padding.share if padding else 0.0)
    assert 0 < wasted < 0.002 * total


def test_offloaded_arrays_hold_a_real_program_up(corpus: Path) -> None:
    report = _report(corpus, "xprof-test/plugins/profile/tpu_inference_2_2cc1243f")
    # INDEX: about 97 % of the XLA ops' time is copy-done, of arrays in the host's memory.
    first = report["findings"][0]
    assert first["rule_id"] == "host-offload-copies"
    assert first["saving"]["share_high"] == pytest.approx(0.97, abs=0.005)
    # The same time is advised on once, and every dimension fits its tile.
    assert not {"exposed-copies", "padded-shapes"} & set(_rules(report))
