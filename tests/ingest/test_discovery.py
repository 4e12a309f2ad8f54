"""Which files of a log directory are profiles, and which belong together."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.errors import NothingFoundError, UsageError
from tb_perfadvisor.ingest import discovery
from tb_perfadvisor.ingest.captures import Listing
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.files import local_tree
from tb_perfadvisor.ingest.files import tree as file_tree
from tb_perfadvisor.ingest.format import HEAD_BYTES
from tb_perfadvisor.ingest.trace_names import parse_trace_name, session_label


def trace(**header: Any) -> bytes:
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": [event]}).encode()


def ranked(rank: int, world_size: int = 2) -> bytes:
    return trace(distributedInfo={"backend": "nccl", "rank": rank, "world_size": world_size})


def put(root: Path, contents: dict[str, bytes]) -> None:
    for path, data in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def grouped(listing: Listing) -> list[tuple[str, list[str]]]:
    """The run and file names of each capture."""
    return [
        (capture.run, [file.path.rsplit("/", 1)[-1] for file in capture.files])
        for capture in listing.captures
    ]


def test_all_hosts_of_a_session_are_one_capture(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "exp/train/plugins/profile/2026_01_02_03_04_05/b.xplane.pb": b"x",
            "exp/train/plugins/profile/2026_01_02_03_04_05/a.xplane.pb": b"xy",
            "exp/train/plugins/profile/2026_01_02_03_09_09/a.xplane.pb": b"x",
            "plugins/profile/s/a.xplane.pb": b"x",
            "elsewhere/other.xplane.pb": b"x",
        },
    )
    listing = discover(tmp_path)
    found = [
        (c.run, c.session, c.format, [(f.host, f.size_bytes) for f in c.files])
        for c in listing.captures
    ]
    assert found == [
        (".", "s", "xplane", [("a", 1)]),
        ("elsewhere", "other", "xplane", [("other", 1)]),
        ("exp/train", "2026_01_02_03_04_05", "xplane", [("a", 2), ("b", 1)]),
        ("exp/train", "2026_01_02_03_09_09", "xplane", [("a", 1)]),
    ]
    assert (listing.scanned_files, listing.is_complete, listing.rejected) == (5, True, ())


def test_files_next_to_an_xplane_are_ignored_silently(tmp_path: Path) -> None:
    session = "plugins/profile/2026_11_21_02_01_33"
    neighbors = [
        "ALL_HOSTS.op_stats_v2.pb",
        "jit_f.hlo_proto.pb",
        ".cached_tools.json",
        "cache_version.txt",
        "vm.SSTABLE",
        "vm.smart_suggestion.pb",
        "vm.trace.json.gz",
        "perfetto_trace.json.gz",
        "vm.overview_page.pb",
    ]
    put(tmp_path, {f"{session}/{name}": b"x" for name in neighbors})
    put(tmp_path, {f"{session}/vm.xplane.pb": b"x", "events.out.tfevents.1.vm.2.3.v2": b"x"})
    listing = discover(tmp_path)
    assert grouped(listing) == [(".", ["vm.xplane.pb"])]
    assert listing.rejected == ()


def test_root_within_a_session_is_one_capture(tmp_path: Path) -> None:
    session = tmp_path / "plugins" / "profile" / "s1"
    put(session, {"a.xplane.pb": b"x", "b.xplane.pb": b"x"})
    for root in (tmp_path, tmp_path / "plugins", tmp_path / "plugins" / "profile", session):
        listing = discover(root)
        assert [(c.run, c.session, len(c.files)) for c in listing.captures] == [(".", "s1", 2)]


def test_results_of_tools_are_one_capture_of_their_session(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "run/plugins/profile/old/b.overview_page.pb": b"x",
            "run/plugins/profile/old/b.kernel_stats.pb": b"x",
            "run/plugins/profile/old/a.input_pipeline.json": b"x",
            "run/plugins/profile/old/a.memory_profile.json.gz": b"x",
            "run/plugins/profile/old/no_steps.kernel_stats.pb": b"x",
            "run/plugins/profile/old/ALL_HOSTS.overview_page.pb": b"x",
            "run/plugins/profile/new/a.overview_page.pb": b"x",
            "run/plugins/profile/new/a.xplane.pb": b"x",
        },
    )
    listing = discover(tmp_path)
    new, old = listing.captures
    assert (new.format, old.format, listing.rejected) == ("xplane", "tf-tools", ())
    assert (old.run, old.session) == ("run", "old")
    workers = [[file.path.rsplit("/", 1)[-1] for file in worker.files] for worker in old.workers]
    assert workers == [
        ["a.input_pipeline.json", "a.memory_profile.json.gz"],
        ["b.kernel_stats.pb", "b.overview_page.pb"],
    ]


def test_merged_results_are_used_if_there_are_no_others(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "plugins/profile/s/ALL_HOSTS.overview_page.pb": b"x",
            "plugins/profile/s/a.kernel_stats.pb": b"x",
        },
    )
    (capture,) = discover(tmp_path).captures
    assert [file.host for file in capture.files] == ["ALL_HOSTS"]


def test_results_without_steps_are_rejected_by_session(tmp_path: Path) -> None:
    names = ("h.kernel_stats.pb", "h.op_profile.json")
    put(tmp_path, {f"plugins/profile/old/{name}": b"x" for name in names})
    listing = discover(tmp_path)
    (rejected,) = listing.rejected
    assert (listing.captures, rejected.path) == ((), "plugins/profile/old")
    assert "before 2021" in rejected.reason
    assert "only kernel_stats, op_profile" in rejected.reason


def test_results_outside_a_session_count_with_steps_among_them(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "copied/h.overview_page.pb": b"x",
            "copied/h.kernel_stats.pb": b"x",
            "of_anything/h.op_profile.json": b"{}",
        },
    )
    listing = discover(tmp_path)
    assert grouped(listing) == [("copied", ["h.kernel_stats.pb", "h.overview_page.pb"])]
    assert listing.rejected == ()
    (capture,) = discover(tmp_path / "copied" / "h.overview_page.pb").captures
    assert capture.format == "tf-tools"
    (rejected,) = discover(tmp_path / "copied" / "h.kernel_stats.pb").rejected
    assert (rejected.path, "only kernel_stats" in rejected.reason) == ("h.kernel_stats.pb", True)


def test_spans_of_one_worker_are_captures(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "run/worker0.1795226454485072071.pt.trace.json": trace(),
            "run/worker0.1795226454553479891.pt.trace.json.gz": gzip.compress(trace()),
        },
    )
    listing = discover(tmp_path)
    assert [(c.run, c.session, len(c.files)) for c in listing.captures] == [
        ("run", "2026_11_21_02_00_54.485", 1),
        ("run", "2026_11_21_02_00_54.553", 1),
    ]


def test_ranks_of_each_span_are_together(tmp_path: Path) -> None:
    # Rank 1 is 3 s late in both spans, later than the second span of rank 0 is written.
    def at(seconds: int) -> int:
        return (1_795_226_000 + seconds) * 10**9

    put(
        tmp_path,
        {
            f"host_11.{at(0)}.pt.trace.json": ranked(0),
            f"host_11.{at(2)}.pt.trace.json": ranked(0),
            f"host_12.{at(3)}.pt.trace.json": ranked(1),
            f"host_12.{at(5)}.pt.trace.json": ranked(1),
        },
    )
    assert grouped(discover(tmp_path)) == [
        (".", [f"host_11.{at(0)}.pt.trace.json", f"host_12.{at(3)}.pt.trace.json"]),
        (".", [f"host_11.{at(2)}.pt.trace.json", f"host_12.{at(5)}.pt.trace.json"]),
    ]


def test_rank_without_a_span_is_missing_from_that_capture(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "rank0.1795226000000.pt.trace.json": trace(),
            "rank1.1795226001000.pt.trace.json": trace(),
            "rank0.1795226060000.pt.trace.json": trace(),
        },
    )
    listing = discover(tmp_path)
    assert [[f.rank for f in c.files] for c in listing.captures] == [[0, 1], [0]]


def test_runs_repeated_in_one_directory_stay_apart(tmp_path: Path) -> None:
    # One process each, an hour apart and a minute apart, by the default names HOST_PROCESS.
    put(
        tmp_path,
        {
            "vm_100.1795220000000000000.pt.trace.json": trace(),
            "vm_200.1795223600000000000.pt.trace.json": trace(),
            "vm_300.1795223660000000000.pt.trace.json": trace(),
        },
    )
    listing = discover(tmp_path)
    assert [len(c.files) for c in listing.captures] == [1, 1, 1]
    assert {c.files[0].host for c in listing.captures} == {"vm"}


def test_ranks_without_times_are_grouped_by_name(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "sampled_rank-0.json.gz": gzip.compress(trace()),
            "sampled_rank-1.json.gz": gzip.compress(trace()),
            "sampled_rank-10.json.gz": gzip.compress(trace()),
            "other_rank-0.json": trace(),
        },
    )
    listing = discover(tmp_path)
    assert [(c.session, [f.rank for f in c.files]) for c in listing.captures] == [
        ("other_rank-0", [0]),
        ("sampled_rank-*", [0, 1, 10]),
    ]


def test_content_decides_and_only_claimed_files_are_rejected(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "a/config.json": b'{"lr": 0.1}',
            "a/data.json.gz": gzip.compress(b"[1, 2]"),
            "a/mine.json": trace(),
            "a/page.pt.trace.json": b"<html>404</html>",
            "a/eg.pt.trace.json": b'{"schema": "1.0.2-chakra.0.0.4", "nodes": [{"id": 1}]}',
            "a/zipped.pt.trace.json": gzip.compress(trace()),
            "a/notes.txt": b"hello",
        },
    )
    listing = discover(tmp_path)
    assert grouped(listing) == [("a", ["mine.json"]), ("a", ["zipped.pt.trace.json"])]
    assert [r.path for r in listing.rejected] == ["a/eg.pt.trace.json", "a/page.pt.trace.json"]
    assert "ExecutionTrace" in listing.rejected[0].reason
    assert listing.scanned_files == 7


def test_one_file_given_directly(tmp_path: Path) -> None:
    put(tmp_path, {"odd name.txt": trace(), "h.xplane.pb": b"x", "b.bin": b"\x00\x01"})
    assert grouped(discover(tmp_path / "odd name.txt")) == [(".", ["odd name.txt"])]
    assert grouped(discover(str(tmp_path / "h.xplane.pb"))) == [(".", ["h.xplane.pb"])]
    listing = discover(tmp_path / "b.bin")
    assert (listing.captures, "binary" in listing.rejected[0].reason) == ((), True)


def test_ids_are_stable_opaque_and_distinct(tmp_path: Path) -> None:
    names = {"x/rank0.1795226000000.pt.trace.json": trace(), "y/s.xplane.pb": b"x"}
    put(tmp_path / "one", names)
    put(tmp_path / "two", names)
    first, second = discover(tmp_path / "one"), discover(tmp_path / "two")
    ids = [capture.id for capture in first.captures]
    assert ids == [capture.id for capture in second.captures]
    assert len(set(ids)) == 2
    assert all(len(i) == 12 and set(i) <= set("0123456789abcdef") for i in ids)
    assert first.capture(ids[1]) == first.captures[1]
    assert first.capture("nothing") is None


def test_walk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(
        tmp_path,
        {
            ".git/a.xplane.pb": b"x",
            "checkpoints/b.xplane.pb": b"x",
            "node_modules/c.xplane.pb": b"x",
            "deep/er/d.xplane.pb": b"x",
            "e.xplane.pb": b"x",
        },
    )
    assert grouped(discover(tmp_path)) == [(".", ["e.xplane.pb"]), ("deep/er", ["d.xplane.pb"])]
    monkeypatch.setattr(local_tree, "MAX_DEPTH", 1)
    listing = discover(tmp_path)
    assert (grouped(listing), listing.is_complete) == ([(".", ["e.xplane.pb"])], False)
    monkeypatch.setattr(local_tree, "MAX_ENTRIES", 2)
    assert discover(tmp_path).is_complete is False


def test_only_a_few_unclaimed_files_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MAX_UNCLAIMED", 3)
    put(tmp_path, {f"data/{i}.json": b"{}" for i in range(5)})
    put(tmp_path, {"z.pt.trace.json": trace()})
    listing = discover(tmp_path)
    assert (grouped(listing), listing.is_complete) == ([(".", ["z.pt.trace.json"])], False)


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_links_are_followed_once(tmp_path: Path) -> None:
    put(tmp_path / "logs", {"run/a.xplane.pb": b"x"})
    put(tmp_path / "store", {"b.xplane.pb": b"x"})
    (tmp_path / "logs/run/loop").symlink_to(tmp_path / "logs")
    (tmp_path / "logs/linked").symlink_to(tmp_path / "store")
    (tmp_path / "logs/dangling.xplane.pb").symlink_to(tmp_path / "nowhere")
    listing = discover(tmp_path / "logs")
    assert grouped(listing) == [("linked", ["b.xplane.pb"]), ("run", ["a.xplane.pb"])]


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    put(tmp_path, {"logs/a.xplane.pb": b"x"})
    assert grouped(discover("~/logs")) == [(".", ["a.xplane.pb"])]


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError, match="no such"):
        discover(tmp_path / "missing")
    with pytest.raises(NothingFoundError):
        discover("bad\0name")
    (tmp_path / "empty").mkdir()
    listing = discover(tmp_path / "empty")
    assert (listing.captures, listing.rejected, listing.scanned_files) == ((), (), 0)


def test_urls_go_through_fsspec() -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    store.pipe(
        {
            "/bucket/logs/run/plugins/profile/s/a.xplane.pb": b"x",
            "/bucket/logs/run/plugins/profile/s/b.xplane.pb": b"x",
            "/bucket/logs/pt/rank0.1795226000000.pt.trace.json": trace(),
            "/bucket/logs/.git/c.xplane.pb": b"x",
        }
    )
    try:
        listing = discover("memory://bucket/logs")
        assert [(c.run, c.session, len(c.files)) for c in listing.captures] == [
            ("pt", "2026_11_21_01_53_20.000", 1),
            ("run", "s", 2),
        ]
        assert listing.captures[0].files[0].mtime_ns > 10**18
        single = discover("memory://bucket/logs/pt/rank0.1795226000000.pt.trace.json")
        assert grouped(single) == [(".", ["rank0.1795226000000.pt.trace.json"])]
        with pytest.raises(NothingFoundError):
            discover("memory://bucket/none")
    finally:
        store.rm("/bucket", recursive=True)


def test_unknown_url_scheme_is_an_error() -> None:
    with pytest.raises(UsageError, match="nosuchstore:// cannot be opened"):
        discover("nosuchstore://bucket/logs")


def test_windows_drives_are_local() -> None:
    assert not file_tree.is_url(r"C:\logs")
    assert not file_tree.is_url("C://logs")
    assert file_tree.is_url("gs://bucket/logs")


@pytest.mark.parametrize(
    ("path", "worker", "family", "rank", "at_ns"),
    [
        ("a/rank12.1623143089861.pt.trace.json", "rank12", "rank*", 12, 1623143089861 * 10**6),
        ("worker1.json.gz", "worker1", "worker*", 1, None),
        (
            "1782843274.7730265-TP-3-DECODE.trace.json.gz",
            "1782843274.7730265-TP-3-DECODE",
            "TP-*-DECODE",
            3,
            1782843274773026500,
        ),
        ("profile_trace_rank_0.json.gz", "profile_trace_rank_0", "profile_trace_rank_*", 0, None),
        (
            "host_77.1795226445677193698.pt.trace.json",
            "host_77",
            "host_77",
            None,
            1795226445677193698,
        ),
    ],
)
def test_file_names_are_parsed(
    path: str, worker: str, family: str, rank: int | None, at_ns: int | None
) -> None:
    name = parse_trace_name(path)
    assert (name.worker, name.family, name.rank, name.at_ns) == (worker, family, rank, at_ns)


def test_session_labels_are_utc_with_milliseconds() -> None:
    assert session_label(1_000_000_007_250_999_999) == "2001_09_09_01_46_47.250"


def test_exports_of_nsight_systems_by_rank(tmp_path: Path) -> None:
    nsight = b"SQLite format 3\0" + b"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL"
    names = ("a/x_rank0.sqlite", "a/x_rank1.sqlite", "b/one.sqlite", "b/two.sqlite.gz")
    files = {name: gzip.compress(nsight) if name.endswith("gz") else nsight for name in names}
    put(tmp_path, {**files, "mlflow.sqlite": b"SQLite format 3\0 runs"})
    listing = discover(tmp_path)
    assert listing.rejected == ()
    found = [(each.run, each.session, len(each.files)) for each in listing.captures]
    assert found == [("a", "x_rank*", 2), ("b", "one", 1), ("b", "two", 1)]
    assert [file.rank for file in listing.captures[0].files] == [0, 1]


def test_an_export_whose_texts_come_before_most_of_its_tables(tmp_path: Path) -> None:
    """As Nsight Systems 2022.2 wrote them: it fills its tables one by one."""
    path = tmp_path / "report.sqlite"
    tables = ["StringIds", "ProcessStreams", "TARGET_INFO_SYSTEM_ENV", "ANALYSIS_DETAILS"]
    tables += [f"ENUM_OF_{number}" for number in range(40)]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA secure_delete = OFF")
        for name in tables[:4]:
            connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, value TEXT)")
        connection.execute("INSERT INTO StringIds VALUES (1, ?)", ["a kernel's name " * 40_000])
        connection.commit()
        for name in [*tables[4:], "CUPTI_ACTIVITY_KIND_RUNTIME", "TARGET_INFO_GPU"]:
            columns = ", ".join(f"a_column_with_a_long_name_{each} INT" for each in range(10))
            connection.execute(f"CREATE TABLE {name} ({columns})")
    assert b"TARGET_INFO_GPU" not in path.read_bytes()[:HEAD_BYTES]
    (capture,) = discover(tmp_path).captures
    assert capture.format == "nsight"


def test_a_log_belongs_to_its_database(tmp_path: Path) -> None:
    nsight = b"SQLite format 3\0" + b"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL"
    log = b"\x37\x7f\x06\x82" + bytes(28)
    put(tmp_path, {"a.sqlite": nsight, "a.sqlite-wal": log, "b.sqlite-wal": log})
    listing = discover(tmp_path)
    (capture,) = listing.captures
    assert [file.path for file in capture.files] == ["a.sqlite", "a.sqlite-wal"]
    assert len(capture.workers) == 1
