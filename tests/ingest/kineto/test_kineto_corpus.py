"""Real files against plain JSON scripts; numbers of other tools are in tests/corpus."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.trace import BUSY_KINDS, EventKind, Source, Trace, TrackKind
from tests.support.corpus_traces import CORPUS

pytestmark = pytest.mark.corpus


def read(pattern: str) -> Trace:
    path = next(iter(sorted(CORPUS.glob(pattern))))
    return next(read_kineto(io.BytesIO(path.read_bytes()), Source(path=path.name, format="")))


def union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def spans(trace: Trace, *kinds: EventKind) -> list[tuple[int, int]]:
    rows = trace.rows(*kinds)
    ends = trace.events.end_ns[rows].tolist()
    return union(list(zip(trace.events.start_ns[rows].tolist(), ends, strict=True)))


def total(merged: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in merged)


@pytest.mark.parametrize(
    ("pattern", "idle_percent", "span_ms"),
    [
        # INDEX.md: computed with the json module, without our code.
        ("hta/df_index_resolver/*/*.gz", 42.3, 1732.965),
        ("hta/nccl_parser_config/*/*.gz", 76.2, 660.551),
        ("hta/negative_queue_length_values_check/*/*.gz", 64.4, 1231.461),
        ("hta/trace_filter/sampled_rank-0.json.gz", 55.2, 1222.847),
        ("hta/trace_filter/sampled_rank-1.json.gz", 52.9, 1231.186),
        ("hta/with_gpu_user_annotation/*/*.gz", 96.2, 7.737),
        ("hta/critical_path_cuda_event_sync_multi_stream/*/*.gz", 98.1, 19.506),
        ("kineto-old/plugin_resnet50_num_workers_0/*.gz", 49.7, 1292.15),
        ("kineto-old/resnet50_autograd_api_num_workers_0/*.gz", 81.3, 5243.667),
        ("kineto/test_gpu_metrics/*/*.json", 99.6, 11.946),
        ("hta/amd_trace/*/*.gz", 98.3, 8.912),
        ("hta/trace_diff_control/*.gz", 100 - 83.6, 464.594),
    ],
)
def test_device_idle_share_matches_the_script(
    pattern: str, idle_percent: float, span_ms: float
) -> None:
    busy = spans(read(pattern), *BUSY_KINDS)
    window = busy[-1][1] - busy[0][0]
    assert window / 1e6 == pytest.approx(span_ms, abs=6e-4)
    assert 100 - 100 * total(busy) / window == pytest.approx(idle_percent, abs=0.06)


@pytest.mark.parametrize(
    ("pattern", "steps", "mean_ms", "loader_percent"),
    [
        # INDEX.md: union of DataLoader ranges within the union of ProfilerStep ranges.
        ("kineto/resnet50_num_workers_0/*.gz", 6, 174.829, 39.6),
        ("kineto-old/plugin_resnet50_num_workers_0/*.gz", 6, 213.778, 24.4),
        ("kineto-old/resnet50_profiler_api_num_workers_0/*.gz", 6, 154.745, 30.1),
        ("local-torch2.13-cpu/conv_dl0_slow_plain/*.gz", 4, 363.818, 90.9),
        ("local-torch2.13-cpu/conv_dl0_slow_rich/*.gz", 4, 370.322, 89.4),
        ("local-torch2.13-cpu/conv_dl0_fast_rich/*.gz", 4, 36.045, 6.6),
        ("kineto/test_gpu_metrics/*/*.json", 1, 13.41, 5.4),
    ],
)
def test_steps_and_input_match_the_script(
    pattern: str, steps: int, mean_ms: float, loader_percent: float
) -> None:
    trace = read(pattern)
    rows = trace.rows(EventKind.STEP)
    assert rows.size == steps
    assert trace.events.duration_ns[rows].mean() / 1e6 == pytest.approx(mean_ms, abs=6e-4)
    markers = spans(trace, EventKind.STEP)
    loading = spans(trace, EventKind.INPUT_WAIT)
    outside = total(union(markers + loading)) - total(markers)
    share = 100 * (total(loading) - outside) / total(markers)
    assert share == pytest.approx(loader_percent, abs=0.06)


def plain(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, strict=False)


@pytest.mark.parametrize(
    "pattern",
    [
        "hta/trace_diff_test/*.gz",
        "hta/df_index_resolver/*/*.gz",
        "kineto/resnet50_num_workers_4/*.gz",
        "local-torch2.13-cpu/conv_dl0_slow_rich/*.gz",
        "tracelens/inference_sglang_decode/*/*.gz",
        "sam-fast/asdf_True_02c6e091/*.gz",
        "hta/mtia_inference_trace/*/*.gz",
    ],
)
def test_no_event_is_lost(pattern: str) -> None:
    path = next(iter(sorted(CORPUS.glob(pattern))))
    events = plain(path)["traceEvents"]
    complete = [e for e in events if e.get("ph") == "X" and e.get("cat") != "Trace"]
    trace = read(pattern)
    assert Counter(map(trace.name, range(len(trace.events)))) == Counter(
        e["name"] for e in complete
    )
    assert len(trace.memory.at_ns) == sum(e.get("name") == "[memory]" for e in events)
    # Every device event is linked to a host event with its correlation, if there is one.
    on_host = {
        e["args"]["correlation"]
        for e in complete
        if e["cat"] in ("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime")
        and e["args"].get("correlation")
    }
    on_device = [
        e
        for e in complete
        if e["cat"].lower().endswith(("kernel", "memcpy", "memset", "cuda_sync", "ccp_events"))
        and e["args"].get("correlation") in on_host
    ]
    assert int((trace.events.launched_by >= 0).sum()) == len(on_device)


def test_forward_links_match_the_flow_events() -> None:
    # The file's own `fwdbwd` flows start at the forward operator and end at the backward node.
    path = next(CORPUS.glob("local-torch2.13-cpu/vit_patchdropout_gather/*.gz"))
    document = plain(path)
    flows: dict[int, dict[str, float]] = {}
    for event in document["traceEvents"]:
        if event.get("cat") == "fwdbwd":
            flows.setdefault(event["id"], {})[event["ph"]] = event["ts"]
    first = min(
        e["ts"] for e in document["traceEvents"] if e.get("ph") == "X" and e["cat"] != "Trace"
    )
    wanted = {
        (round((f["f"] - first) * 1000), round((f["s"] - first) * 1000)) for f in flows.values()
    }
    trace = read("local-torch2.13-cpu/vit_patchdropout_gather/*.gz")
    events = trace.events
    backward = np.flatnonzero(events.forward >= 0)
    found = {
        (int(events.start_ns[row]), int(events.start_ns[events.forward[row]])) for row in backward
    }
    assert len(wanted) == 426
    assert wanted <= found


def test_nesting_matches_the_python_frames() -> None:
    # Python frames carry their parent's id: time nesting must agree. Left out are the frames
    # in record_function's own __enter__ and __exit__: its range starts inside the one and ends
    # inside the other, so that it crosses them.
    path = next(CORPUS.glob("local-torch2.13-cpu/conv_dl0_fast_rich/*.gz"))
    frames = {
        e["args"]["Python id"]: e
        for e in plain(path)["traceEvents"]
        if e.get("cat") == "python_function"
    }
    crossed = "torch/autograd/profiler.py"
    wanted: Counter[tuple[str, str]] = Counter()
    for frame in frames.values():
        parent = frames.get(frame["args"]["Python parent id"])
        if parent is not None and not parent["name"].startswith(crossed):
            wanted[frame["name"], parent["name"]] += 1
    trace = read("local-torch2.13-cpu/conv_dl0_fast_rich/*.gz")
    found: Counter[tuple[str, str]] = Counter()
    for row in trace.rows(EventKind.PYTHON).tolist():
        parent_row = int(trace.events.parent[row])
        while parent_row >= 0 and trace.events.kind[parent_row] != EventKind.PYTHON:
            parent_row = int(trace.events.parent[parent_row])
        if parent_row >= 0:
            found[trace.name(row), trace.name(parent_row)] += 1
    assert sum(wanted.values()) > 2000
    assert sum((wanted - found).values()) == 0


@pytest.mark.parametrize(
    ("name", "events", "note_ids"),
    [
        # 1091 entries in the file it was made from: 1021 complete, one of them a span.
        ("array_form", 1020, set()),
        ("control_char", 1020, {"repaired-json"}),
        ("empty_traceEvents", 0, {"empty-profile"}),
        ("gz_two_members", 1020, set()),
        ("json_name_gz_content", 1020, set()),
        ("missing_fields", 1017, {"malformed-events"}),
        ("negative_dur", 1020, {"malformed-events"}),
        ("string_numbers", 1020, set()),
        ("trailing_comma", 1020, set()),
        ("unescaped_backslash", 1020, {"repaired-json"}),
    ],
)
def test_damaged_files_are_read(name: str, events: int, note_ids: set[str]) -> None:
    trace = read(f"derived-malformed/{name}/*")
    assert len(trace.events) == events
    assert {note.id for note in trace.notes} == note_ids


def test_a_truncated_file_keeps_what_precedes_the_break() -> None:
    trace = read("derived-malformed/truncated_json/*")
    text = next(CORPUS.glob("derived-malformed/truncated_json/*")).read_text()
    complete = text.count('"ph": "X"')
    assert len(trace.events) == complete - 1  # the last one is truncated
    assert [note.id for note in trace.notes] == ["truncated-file"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("derived-malformed/empty_file/*", "empty"),
        ("derived-malformed/html_error_page/*", "web page"),
        ("derived-malformed/json_number_list/*", "numbers"),
        ("astra-sim/result_eg/*", "ExecutionTrace"),
        ("hta/memory_timeline/*", "export_memory_timeline"),
        ("sagemaker-debugger/8278c748/*", "Horovod"),
        ("sagemaker-debugger/ddc85062/*", "TensorFlow or JAX"),
        ("sagemaker-debugger/tfprof_small/*", "TensorFlow or JAX"),
        ("local-jax-cpu/train_steps/plugins/profile/*/*.json.gz", "TensorFlow or JAX"),
        ("ibm-aiu/allreduce_tp4/*", "Chrome trace"),
        ("intel-xpu/mock_events/*", "dump"),
    ],
)
def test_other_formats_are_named(pattern: str, words: str) -> None:
    with pytest.raises(UnreadableProfileError, match=words):
        read(pattern)


def test_every_file_keeps_the_invariants() -> None:
    read_any = 0
    for path in sorted(CORPUS.rglob("*.json*")):
        relative = path.relative_to(CORPUS).as_posix()
        if relative.startswith(("expected/", "xprof", "local-bench/")):
            continue
        try:
            trace = next(
                read_kineto(io.BytesIO(path.read_bytes()), Source(path=relative, format=""))
            )
        except UnreadableProfileError:
            continue
        read_any += 1
        events = trace.events
        assert (events.duration_ns >= 0).all()
        child = np.flatnonzero(events.parent >= 0)
        parent = events.parent[child]
        assert (events.end_ns[child] <= events.end_ns[parent]).all()
        assert (events.track[child] == events.track[parent]).all()
        is_stream = trace.tracks.kind[events.track] == TrackKind.DEVICE_STREAM
        assert ((events.kind >= EventKind.KERNEL) == is_stream).all()
        indices = set(trace.tracks.device[trace.tracks.device >= 0].tolist())
        assert indices <= {device.index for device in trace.devices}
    assert read_any > 60


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_raise_only_our_errors(seed: int) -> None:
    chance = random.Random(seed)
    path = chance.choice(
        [
            next(CORPUS.glob("derived-malformed/array_form/*")),
            next(CORPUS.glob("hta/triton_example/*/*")),
            next(CORPUS.glob("hta/amd_trace/*/*")),
            next(CORPUS.glob("kineto/test_gpu_metrics/*/*.json")),
        ]
    )
    data = bytearray(path.read_bytes())
    for _ in range(chance.randrange(1, 20)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.5:
        del data[chance.randrange(len(data)) :]
    with suppress(PerfAdvisorError):
        next(read_kineto(io.BytesIO(bytes(data)), Source(path="x", format="")))


def test_all_to_alls_are_named_and_a_fifth_of_the_span_is_exposed() -> None:
    """INDEX.md: collectives no other kernel overlaps take 18.9 % of the device's whole span."""
    trace = read("hta/trace_diff_control/*.gz")
    operations = Counter(trace.texts(trace.collectives.operation))
    # Counted in the file: 42 kernels called SendRecv, each launched inside nccl:all_to_all.
    assert operations == {"all-to-all": 42, "all-reduce": 18}
    busy = spans(trace, *BUSY_KINDS)
    kernels = spans(trace, EventKind.KERNEL)
    alone = total(spans(trace, EventKind.KERNEL, EventKind.COLLECTIVE)) - total(kernels)
    assert alone / (busy[-1][1] - busy[0][0]) == pytest.approx(0.189, abs=0.001)
