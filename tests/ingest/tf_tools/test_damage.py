"""Damaged, unrelated and hostile files are refused in one sentence, never with a traceback."""

from __future__ import annotations

import gzip
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor import analyze
from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.trace import Trace
from tests.support.night import IS_NIGHT
from tests.support.tool_results import (
    chart_table,
    document,
    generic_step,
    input_pipeline,
    kernel_stats,
    overview,
    read,
    stage,
    tensorflow_stats,
    tpu_step,
)

PIPELINE = input_pipeline(
    generic_step(0, step=10.0, wait_input=4.0, compute=6.0),
    tpu_step(1, compute=3.0, infeed=1.0),
    stages=[stage("Iterator::Model", 3, 2.0, 1.0, "Preprocessing")],
    mean=7.0,
    errors=["something"],
)
GOOD = {
    "h.input_pipeline.pb": PIPELINE,
    "h.overview_page.pb": overview(PIPELINE, percent={1: 5.0, 10: 100.0}, device="GPU", cores=2),
    "h.tensorflow_stats.pb": tensorflow_stats(("Device", "MatMul", "a", 6, 90.0, 60.0)),
    "h.kernel_stats.pb": kernel_stats(("volta_sgemm", 700, 3)),
    "h.input_pipeline.json": document(
        [chart_table({"stepnum": ["0"], "computeTimeMs": [7.0], "inputTimeMs": [0.0]})]
    ),
    "h.pod_viewer.json": document(
        {
            "podStatsSequence": {
                "podStatsMap": [{"stepNum": 0, "podStatsPerCore": {"1": {"totalDurationUs": 7e3}}}]
            }
        }
    ),
    "h.memory_profile.json": document(
        {"memoryProfilePerAllocator": {"GPU_0_bfc": {"profileSummary": {"peakStats": {}}}}}
    ),
    "h.memory_viewer.json": document({"bufferAssignment": {"bufferAllocations": [{"size": "3"}]}}),
    "h.op_profile.json": document({"byCategory": {"children": [{"metrics": {"time": 0.5}}]}}),
}


def test_undamaged_files_are_read() -> None:
    trace = read(GOOD)
    assert [note.id for note in trace.notes if note.id == "unsupported-file"] == []


@pytest.mark.parametrize("name", GOOD)
def test_cut_off_anywhere(name: str) -> None:
    rest = {other: data for other, data in GOOD.items() if other != name}
    for size in range(0, len(GOOD[name]), 7 if IS_NIGHT else 35):
        check(read({**rest, name: GOOD[name][:size]}))


@given(st.sampled_from(sorted(GOOD)), st.integers(0, 2**32), st.integers(1, 12))
def test_bytes_changed_anywhere(name: str, seed: int, count: int) -> None:
    chance = random.Random(seed)
    data = bytearray(GOOD[name])
    for _ in range(count):
        data[chance.randrange(len(data))] = chance.randrange(256)
    try:
        trace = read({name: bytes(data)})
    except PerfAdvisorError:
        return
    check(trace)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["cols", "rows", "p", "c", "v", "id", "podStatsSequence", "podStatsMap"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(["overview_page", "pod_viewer", "memory_profile", "op_profile"]),
    VALUES,
)
def test_json_of_any_shape(tool: str, value: object) -> None:
    try:
        trace = read({f"h.{tool}.json": document(value)})
    except PerfAdvisorError:
        return
    check(trace)


def check(trace: Trace) -> None:
    """What is read can be analyzed."""
    assert all(outcome.status != "failed" for outcome in analyze(trace).outcomes)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("h.overview_page.pb", b"", "the file is empty or damaged."),
        ("h.overview_page.pb", gzip.compress(PIPELINE)[:-40], "this is not a result of"),
        ("h.overview_page.pb", b"<!DOCTYPE html><html>", "this is not a result of"),
        ("h.input_pipeline.pb", document({"a": 1}), "this is not a result of"),
        ("h.input_pipeline.json", b"<!DOCTYPE html><html>", "this is not JSON"),
        ("h.input_pipeline.json", b"[" * 100_000, "this is not JSON"),
        ("h.input_pipeline.json", b"[1" + b"0" * 5000 + b"]", "this is no"),
        ("h.input_pipeline.json", b'{"a": 1}', "this is not a result of"),
        ("h.pod_viewer.json", b"[]", "this is not a result of"),
        ("h.pod_viewer.pb", PIPELINE, "this tool does not write .pb files."),
        ("h.overview_page.json", b"\xff\xfe\x00", "this is not JSON"),
    ],
)
def test_other_files_are_refused(name: str, data: bytes, message: str) -> None:
    with pytest.raises(UnreadableProfileError) as error:
        read({name: data})
    assert error.value.message.startswith(message)
    assert error.value.where == name


def test_invalid_text_does_not_reject_a_file() -> None:
    step = generic_step(0, step=1.0, compute=1.0)
    trace = read({"h.input_pipeline.pb": input_pipeline(step).replace(b"GPU", b"\xff\xfeP")})
    assert trace.devices[0].name == "��P"


def test_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tb_perfadvisor.ingest.tf_tools.reader._LARGEST_BYTES", 1 << 10)
    bomb = gzip.compress(bytes(1 << 20))
    with pytest.raises(UnreadableProfileError, match=r"the file is larger than 1.00 KiB"):
        read({"h.input_pipeline.json.gz": bomb})
