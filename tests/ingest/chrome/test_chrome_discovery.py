"""Which exports are read: those of sessions without an xplane, and separate files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.ingest.captures import Listing
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tests.support.chrome_files import HOST, process, span, to_bytes

EXPORT = gzip.compress(to_bytes([*HOST, span("train", 0, 5, args={"step_num": "1"})]))
KINETO = json.dumps(
    {
        "schemaVersion": 1,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
            {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1},
        ],
    }
).encode()


def put(root: Path, contents: dict[str, bytes]) -> None:
    for path, data in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def found(listing: Listing) -> list[tuple[Any, ...]]:
    return [
        (c.run, c.session, c.format, [(f.path.rsplit("/", 1)[-1], f.host) for f in c.files])
        for c in listing.captures
    ]


def test_a_session_without_an_xplane(tmp_path: Path) -> None:
    session = "exp/plugins/profile/2020_06_01_02_03_04"
    put(
        tmp_path,
        {
            f"{session}/b.trace.json.gz": EXPORT,
            f"{session}/a.trace.json": gzip.decompress(EXPORT),
            f"{session}/a.overview_page.pb": b"x",
            f"{session}/perfetto_trace.json.gz": EXPORT,
        },
    )
    listing = discover(tmp_path)
    hosts = [("a.trace.json", "a"), ("b.trace.json.gz", "b")]
    assert found(listing) == [("exp", "2020_06_01_02_03_04", "chrome", hosts)]
    assert listing.rejected == ()
    run = load_capture(listing, listing.captures[0])
    assert [(t.source.host, t.source.format) for t in run.traces] == [
        ("a", "chrome"),
        ("b", "chrome"),
    ]


@pytest.mark.parametrize("folder", ["plugins/profile/s", "elsewhere"])
def test_an_xplane_is_read_in_place_of_its_exports(tmp_path: Path, folder: str) -> None:
    put(
        tmp_path,
        {
            f"{folder}/vm.xplane.pb": b"x",
            f"{folder}/vm.trace.json.gz": EXPORT,
            f"{folder}/perfetto_trace.json.gz": EXPORT,
        },
    )
    listing = discover(tmp_path)
    assert [(c.format, len(c.files)) for c in listing.captures] == [("xplane", 1)]
    assert listing.rejected == ()


def test_perfetto_file_is_read_if_there_is_nothing_else(tmp_path: Path) -> None:
    put(tmp_path, {"plugins/profile/s/perfetto_trace.json.gz": EXPORT})
    put(tmp_path, {"plugins/profile/both/perfetto_trace.json.gz": EXPORT})
    put(tmp_path, {"plugins/profile/both/vm.trace.json.gz": EXPORT})
    assert found(discover(tmp_path)) == [
        (".", "both", "chrome", [("vm.trace.json.gz", "vm")]),
        (".", "s", "chrome", [("perfetto_trace.json.gz", "")]),
    ]
    # A file that the user names is read, whatever other files there are.
    (tmp_path / "plugins/profile/both/vm.xplane.pb").write_bytes(b"x")
    for name, host in (("perfetto_trace.json.gz", ""), ("vm.trace.json.gz", "vm")):
        listing = discover(tmp_path / "plugins/profile/both" / name)
        assert [(c.format, c.files[0].host) for c in listing.captures] == [("chrome", host)]


def test_exports_are_found_in_any_directory(tmp_path: Path) -> None:
    job = "/job:localhost/replica:0/task:0/device:CPU:0 Compute"
    timeline = to_bytes([process(0, "Allocators"), process(1, job), span("MatMul", 0, pid=1)])
    put(
        tmp_path,
        {"old/timeline.json": timeline, "old/trace.json": EXPORT, "x/h.trace.json": EXPORT},
    )
    assert found(discover(tmp_path)) == [
        ("old", "timeline", "chrome", [("timeline.json", "")]),
        ("old", "trace", "chrome", [("trace.json", "")]),
        ("x", "h", "chrome", [("h.trace.json", "h")]),
    ]


def test_process_names_may_follow_the_events(tmp_path: Path) -> None:
    """Recognized by the names of its events, if the file is named like a trace."""
    events = [span(f"$train.py:{i} step", i) for i in range(10_000)]
    late = to_bytes([*events, *HOST])
    assert len(late) > 2 * 262_144
    put(tmp_path, {"a.trace.json": late, "b.json": late})
    (capture,) = discover(tmp_path).captures
    (trace,) = load_capture(discover(tmp_path), capture).traces
    assert (capture.files[0].path, len(trace.events)) == ("a.trace.json", 10_000)


def test_traces_of_pytorch_in_a_session(tmp_path: Path) -> None:
    put(tmp_path, {"plugins/profile/s/worker.trace.json": KINETO})
    assert [(c.run, c.format) for c in discover(tmp_path).captures] == [
        ("plugins/profile/s", "kineto")
    ]


def test_other_json_is_rejected_with_a_reason(tmp_path: Path) -> None:
    session = "plugins/profile/s"
    put(tmp_path, {f"{session}/h.trace.json.gz": b"<html>", f"{session}/h.overview_page.pb": b"x"})
    listing = discover(tmp_path)
    # The results of tools remain.
    assert [capture.format for capture in listing.captures] == ["tf-tools"]
    assert [(rejected.path, rejected.reason[:22]) for rejected in listing.rejected] == [
        (f"{session}/h.trace.json.gz", "this is a web page, pr"),
    ]


def test_export_is_preferred_to_the_results_of_tools(tmp_path: Path) -> None:
    session = "plugins/profile/s"
    results = {f"{session}/h.{name}": b"x" for name in ("overview_page.pb", "kernel_stats.pb")}
    put(tmp_path, {f"{session}/h.trace.json.gz": EXPORT, **results})
    listing = discover(tmp_path)
    (capture,) = listing.captures
    assert capture.format == "chrome"
    assert capture.attached == ()
