"""Recorded exports against the xplanes that were recorded with them."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.ingest.chrome.reader import read_chrome
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import EventKind, Source, Trace
from tb_perfadvisor.trace.intervals import total_ns
from tests.support.chrome_files import events_of, note_ids
from tests.support.corpus_traces import CORPUS
from tests.support.writers.chrome import export_space

pytestmark = pytest.mark.corpus
SOURCE = Source(path="x", format="")
TWINS = [
    ("train_steps", "vm.trace.json.gz"),
    ("train_steps", "perfetto_trace.json.gz"),
    ("train_steps_host_bound", "vm.trace.json.gz"),
    ("train_no_step_annotation", "vm.trace.json.gz"),
    ("train_dp4_sharded", "vm.trace.json.gz"),
]


def twins(name: str, export: str) -> tuple[bytes, bytes]:
    """The bytes of an xplane and of its export."""
    (folder,) = CORPUS.glob(f"local-jax-cpu/{name}/plugins/profile/*/")
    return (folder / "vm.xplane.pb").read_bytes(), (folder / export).read_bytes()


def analyzed(trace: Trace) -> tuple[Any, ...]:
    signals = Signals(run_of(trace))
    steps = signals.steps
    causes = {
        cause: total_ns(intervals) for cause, intervals in signals.attribution.intervals.items()
    }
    return steps.source, steps.start_ns.tolist(), steps.end_ns.tolist(), causes


@pytest.mark.parametrize(("name", "export"), TWINS)
def test_export_reads_like_its_xplane(name: str, export: str) -> None:
    planes, exported = twins(name, export)
    wanted = read_xplane(io.BytesIO(planes), SOURCE)
    found = read_chrome(io.BytesIO(exported), SOURCE)
    assert len(found.events) > 1000
    assert events_of(found) == events_of(wanted)
    assert analyzed(found) == analyzed(wanted)
    assert (found.source.framework, found.source.has_stacks) == ("jax", wanted.source.has_stacks)
    assert note_ids(found) == ["chrome-export"]
    assert len(found.hlo_events.row) == len(wanted.hlo_events.row)


@pytest.mark.parametrize("name", sorted({name for name, _ in TWINS}))
def test_our_exports_equal_those_of_jax(name: str) -> None:
    """Exports written for tests equal those that JAX wrote, to the last digit."""

    def read(data: bytes) -> Counter[str]:
        events = json.loads(data, parse_int=float)["traceEvents"]
        return Counter(json.dumps(event, sort_keys=True) for event in events)

    planes, exported = twins(name, "vm.trace.json.gz")
    assert read(export_space(planes)) == read(gzip.decompress(exported))


@pytest.mark.parametrize(
    "pattern",
    ["tracelens-jax/*", "xprof-demo", "local-tf-cpu/*", "local-tf-cpu/*/train"],
)
def test_exports_of_recorded_xplanes_read_like_the_xplanes(pattern: str) -> None:
    """GPUs of two vendors, and tf.data, whose marks the exporter keeps only in part."""
    paths = sorted(CORPUS.glob(f"{pattern}/plugins/profile/*/*.xplane.pb"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        wanted = read_xplane(io.BytesIO(data), SOURCE)
        found = read_chrome(io.BytesIO(export_space(data)), SOURCE)
        assert found.source.framework == wanted.source.framework
        steps, *_, causes = analyzed(found)
        expected_steps, *_, expected = analyzed(wanted)
        assert steps == expected_steps

        # Without the programs, the precision of fusions is unknown.
        def summed(causes: dict[Any, int]) -> dict[str, int]:
            found: Counter[str] = Counter()
            for cause, ns in causes.items():
                found["compute" if cause.value.startswith("compute") else cause.value] += ns
            return found

        assert summed(causes) == summed(expected), path


def test_export_of_a_tpu_profile(corpus: Path) -> None:
    (path,) = corpus.glob("xprof-test/plugins/profile/tpu_inference_2*/host.xplane.pb")
    wanted = read_xplane(io.BytesIO(path.read_bytes()), SOURCE)
    found = read_chrome(io.BytesIO(export_space(path.read_bytes())), SOURCE)

    def device_work(trace: Trace) -> Counter[tuple[Any, ...]]:
        return Counter(
            {
                (start, duration, kind, name, line): count
                for (start, duration, kind, name, line, *_), count in events_of(trace).items()
                if kind in (EventKind.KERNEL, EventKind.COPY, EventKind.COLLECTIVE)
            }
        )

    assert device_work(found) == device_work(wanted)
    assert found.collectives.size_bytes.tolist() == wanted.collectives.size_bytes.tolist()
    # Everything is there except asynchronous work and launches.
    missing = set(wanted.events.kind.tolist()) - set(found.events.kind.tolist())
    assert missing == {EventKind.DEVICE_ASYNC}
    assert note_ids(found) == ["chrome-export", "device-clock-shift", "device-clock"]


def test_export_of_the_2020_tensorflow_profiler() -> None:
    path = CORPUS / "sagemaker-debugger" / "ddc85062" / "trace.json"
    trace = read_chrome(io.BytesIO(path.read_bytes()), SOURCE)
    document = json.loads(path.read_bytes())
    spans = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    assert len(trace.events) == len(spans) == 1663
    # INDEX: 8 GPUs without recorded events.
    assert [device.kind for device in trace.devices] == ["gpu"] * 8
    assert (trace.source.framework, trace.source.format) == ("tensorflow", "chrome")
    first = min(event["ts"] for event in spans)
    last = max(event["ts"] + event["dur"] for event in spans)
    assert trace.duration_ns == pytest.approx(1000 * (last - first), abs=1)
    fetches = [trace.name(row) for row in trace.rows(EventKind.INPUT_WAIT).tolist()]
    assert "IteratorGetNextOp::DoCompute" in fetches
    chains = {trace.name(row) for row in trace.rows(EventKind.INPUT_WORK).tolist()}
    assert any(name.startswith("Iterator::Model::ForeverRepeat::Map::") for name in chains)
