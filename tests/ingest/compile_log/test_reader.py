from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.compile_log import records
from tb_perfadvisor.ingest.compile_log.collector import parse_break, parse_guard
from tb_perfadvisor.ingest.compile_log.reader import read_compile_log
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.trace import EventKind, Source, Trace
from tb_perfadvisor.trace.compile_log import (
    CacheUse,
    CodeLine,
    CompileLog,
    CompilePhase,
    GraphBreak,
)
from tests.support.compile_logs import (
    artifact,
    break_text,
    compiled,
    example_log,
    ids,
    record,
)
from tests.support.corpus_traces import CORPUS
from tests.support.mutation import mutated

SOURCE = Source(path="run/log", format="torch-compile-log")


def read(data: bytes) -> Trace:
    return read_compile_log(io.BytesIO(data), SOURCE)


def log_of(data: bytes) -> CompileLog:
    log = read(data).compile_log
    assert log is not None
    return log


def test_compilations_breaks_and_caches_are_read() -> None:
    log = log_of(example_log())
    assert (log.version, log.process, log.rank) == ("2.13.0+cpu", 700, None)
    first, second = log.compilations
    assert (first.id, first.function, str(first.place)) == ("0/0", "forward", "project/train.py:9")
    # 2 s in all: 0.4 s of tracing, 0.2 s of AOTAutograd, 1.4 s of Inductor; backward 1.5 s later.
    assert (first.total_ns, first.backend_ns) == (2 * 10**9, 16 * 10**8)
    assert (first.backward_ns, first.known_ns) == (15 * 10**8, 35 * 10**8)
    assert not first.is_recompilation
    assert second.failed_guards == ("tensor 'x' size mismatch at index 0. expected 16, actual 17",)
    assert log.known_ns == 4 * 10**9
    expected = GraphBreak(
        "0/0",
        CodeLine("project/train.py", 11),
        "Failed to trace builtin operator",
        "Dynamo does not know how to trace builtin operator `print`.",
        "Avoid calling builtin `print`.",
    )
    assert log.breaks[0] == expected
    assert log.caches == (CacheUse("Inductor (FX graphs)", 1, 1), CacheUse("AOTAutograd", 0, 1))


def test_phases_are_events_and_their_own_time_leaves_out_what_is_inside() -> None:
    trace = read(example_log())
    rows = trace.rows(EventKind.COMPILE)
    assert [trace.name(row) for row in rows.tolist()] == [
        "entire_frame_compile",
        "inductor_compile",
    ]
    assert trace.events.duration_ns[rows].tolist() == [2 * 10**9, 14 * 10**8]
    assert trace.source.origin_unix_ns == 1_767_225_600 * 10**9
    assert trace.compile_log is not None
    assert trace.compile_log.phases == (
        CompilePhase("inductor_compile", 1, 14 * 10**8),
        CompilePhase("entire_frame_compile", 1, 6 * 10**8),
    )


def test_phases_of_other_threads_may_overlap() -> None:
    # The compiler's threads log with one id: the file is compiled beside two phases.
    def event(ph: str, name: str, at_us: float) -> bytes:
        return record({"chromium_event": {}}, {"name": name, "ph": ph, "ts": at_us})

    log = log_of(
        event("B", "compile_file", 10)
        + event("B", "a", 20)
        + event("E", "compile_file", 30)
        + event("B", "b", 35)
        + event("E", "b", 40)
        + event("E", "a", 50)
    )
    assert {each.name: each.self_ns for each in log.phases} == {
        "compile_file": 20_000,
        "a": 25_000,  # 30 us without the 5 of b
        "b": 5_000,
    }


def test_ids_that_come_again_after_a_reset_are_other_compilations() -> None:
    again = compiled("0/0", "f", 3, duration_us=100)
    log = log_of(again + again)
    assert [each.total_ns for each in log.compilations] == [100_000, 100_000]


def test_older_versions_give_seconds() -> None:
    # PyTorch 2.4 knew entire_frame_compile_time_s only.
    log = log_of(compiled("0/0", "f", 3, entire_frame_compile_time_s=1.25, start_time=1.7e9))
    (only,) = log.compilations
    assert (only.total_ns, only.start_unix_ns) == (1_250_000_000, 1_700_000_000 * 10**9)


def test_a_function_that_was_compiled_too_often_is_told_from_one_that_failed() -> None:
    limit = {"compile_id": "0/8", "fail_type": "Unsupported"} | {
        "fail_reason": "Dynamo recompile limit exceeded\n  Explanation: ..."
    }
    log = log_of(
        compiled("0/0", "f", 3, duration_us=1)
        + artifact("recompile_reasons", "0/8", '["0/7: n == 7", "0/6: n == 6"]')
        + record({"compilation_metrics": limit, **ids("0/8")})
        + compiled(
            "1/0",
            "g",
            7,
            fail_type="torch._dynamo.exc.BackendCompilerFailed",
            fail_reason="backend='mine' raised:\nRuntimeError: no",
        )
    )
    limited, failed = log.compilations[1:]
    assert (limited.function, limited.reached_limit) == ("f", True)
    assert limited.failed_guards == ("n == 7", "n == 6")
    assert not failed.reached_limit
    (only,) = log.breaks
    assert only.is_uncompiled
    assert only.reason == "BackendCompilerFailed: backend='mine' raised: RuntimeError: no"
    assert only.place == CodeLine("project/train.py", 7)


def test_impossible_numbers_are_unknown() -> None:
    log = log_of(
        compiled("0/0", "f", 3, duration_us=10**400)
        + compiled("0/1", "f", 3, duration_us=7)
        + record({"artifact": {"name": "torch_version"}, "rank": 2**63})
    )
    assert [each.total_ns for each in log.compilations] == [None, 7_000]
    assert log.rank is None


def test_a_reason_of_a_cache_that_is_not_utf8_is_kept() -> None:
    bypassed = artifact("aotautograd_cache_bypass", "0/0", {"cache_bypass_reason": "Bad @ op"})
    log = log_of(compiled("0/0", "f", 3, duration_us=1) + bypassed.replace(b"@", b"\xe3"))
    assert log.caches[0].reasons == ("Bad \ufffd op",)


def test_reasons_that_are_not_utf8_are_kept() -> None:
    log = log_of(
        compiled("0/0", "f", 3, duration_us=1)
        + artifact("recompile_reasons", "0/1", '["0/0: n == @", "0/0: m"]').replace(b"@", b"\xde")
        + compiled("0/1", "f", 3, duration_us=1)
    )
    assert log.compilations[1].failed_guards == ("n == \ufffd", "m")


def test_a_guard_is_shown_with_its_line() -> None:
    text = "0/0: name == 'a'          # return x if name else y  # project/deep/train.py:14 in many"
    assert parse_guard(text) == "name == 'a' (deep/train.py:14)"


def test_a_skipped_function_is_named_by_the_innermost_frame_of_the_user() -> None:
    text = (
        "Graph break: torch.compile cannot properly resume from this graph break, which results "
        "in a skip.\ntorch.compile will skip tracing the frame f (train.py line 5) and fall back "
        "to eager.\nThe graph break occurred in the following user code:\n"
        '  File "/home/me/project/train.py", line 7, in f\n    g(x)\n'
        '  File "/home/me/project/loss.py", line 21, in g\n    print(x)\n\n'
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/torch/_dynamo/symbolic_convert.py", line 5098, in step\n'
    )
    found = parse_break(text, "0/0")
    assert found.place == CodeLine("project/loss.py", 21)
    assert found.is_uncompiled


def test_compressed_logs_and_lines_of_others_are_read() -> None:
    data = b"INFO starting\n" + example_log().replace(b"\nV0102", b"\nepoch 1\nV0102", 3)
    assert log_of(gzip.compress(data)) == log_of(example_log())


def test_blocks_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = log_of(example_log())
    for size in (1, 7, 100, 1000):
        monkeypatch.setattr(records, "_BLOCK_BYTES", size)
        assert log_of(example_log()) == whole


def test_a_huge_record_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_BLOCK_BYTES", 1_000)
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 4_000)
    huge = artifact("inductor_output_code", "0/0", "\n".join(["x = 1"] * 5_000))
    first = example_log()
    assert log_of(huge + first) == log_of(first)


def test_text_without_records_is_refused() -> None:
    with pytest.raises(UnreadableProfileError, match=r"no record of torch\.compile"):
        read(b"epoch 1 loss 0.3\n")


@given(mutated(example_log(), b"\n", b"\t", b"{", b"V0102 15:04:05.0 1 a.py:1] {", b'"ts": 1e999'))
def test_damaged_logs(data: bytes) -> None:
    try:
        trace = read(data)
    except UnreadableProfileError:
        return
    assert trace.compile_log is not None
    assert all(each.known_ns >= 0 for each in trace.compile_log.compilations)


# --- where logs lie ---------------------------------------------------------------------------


def put(folder: Path, name: str, data: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_a_log_is_found_by_what_is_in_it(tmp_path: Path) -> None:
    put(tmp_path, "run/train.log", example_log())
    put(tmp_path, "run/other.log", b"epoch 1 loss 0.3\n")
    listing = discover(tmp_path)
    (capture,) = listing.captures
    assert (capture.run, capture.session, capture.format) == ("run", "train", "torch-compile-log")
    assert listing.rejected == ()


def test_the_ranks_of_one_run_are_one_capture(tmp_path: Path) -> None:
    for rank in (0, 1):
        data = example_log().replace(b'"frame_id"', b'"rank": %d, "frame_id"' % rank)
        put(tmp_path, f"run/dedicated_log_torch_trace_rank_{rank}_ab{rank}c_efg.log", data)
    (capture,) = discover(tmp_path).captures
    assert [file.rank for file in capture.files] == [0, 1]
    assert capture.session == "dedicated_log_torch_trace"


@pytest.mark.parametrize("place", ["run/t.log", "run/compile/t.log"])
def test_a_log_beside_a_profile_belongs_to_it(tmp_path: Path, place: str) -> None:
    trace = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm",'
    put(tmp_path, "run/w.pt.trace.json", trace + b'"pid": 1, "tid": 1, "ts": 1, "dur": 2}]}')
    put(tmp_path, place, example_log())
    put(tmp_path, "elsewhere/deep/t.log", example_log())
    listing = discover(tmp_path)
    by_format = {capture.format: capture for capture in listing.captures}
    assert [file.path for file in by_format["kineto"].compile_logs] == [place]
    assert by_format["torch-compile-log"].run == "elsewhere/deep"
    run = load_capture(listing, by_format["kineto"])
    assert [log.path for log in run.compile_logs] == [place]


def test_a_damaged_log_beside_a_profile_costs_only_itself(tmp_path: Path) -> None:
    trace = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm",'
    put(tmp_path, "run/w.pt.trace.json", trace + b'"pid": 1, "tid": 1, "ts": 1, "dur": 2}]}')
    put(tmp_path, "run/t.log", example_log())
    listing = discover(tmp_path)
    put(tmp_path, "run/t.log", b"gone")
    run = load_capture(listing, listing.captures[0])
    assert run.compile_logs == ()
    assert any("run/t.log was left out" in note.message for note in run.notes)


# --- recorded logs ----------------------------------------------------------------------------


@pytest.mark.corpus
def test_recorded_logs() -> None:
    """Counts are those of `grep -c` on the files; times are those that the files state."""
    folder = CORPUS / "meta-pytorch"
    log = log_of((folder / "tests_inputs_cache_hit_miss.log").read_bytes())
    assert len(log.compilations) == 6  # grep -c '"dynamo_start"'
    assert {use.name: (use.hits, use.misses, use.bypasses) for use in log.caches} == {
        "Inductor (FX graphs)": (1, 2, 0),
        "AOTAutograd": (0, 0, 3),
    }
    failed = log_of((folder / "tests_inputs_chromium_events.log").read_bytes())
    assert [str(each.place) for each in failed.breaks] == ["dynamo/test_misc.py:10755"]
    name = "tests_inputs_multi_rank_schedule_dedicated_log_torch_trace_rank_1_n8zycf07.log"
    ranked = log_of((folder / name).read_bytes())
    # "duration_us": 5621637 and 420361
    assert {each.function: each.total_ns for each in ranked.compilations} == {
        "graph_one": 5_621_637_000,
        "graph_two": 420_361_000,
    }


def test_the_message_of_a_break_has_a_place() -> None:
    assert parse_break(break_text(30), "").place == CodeLine("project/train.py", 30)
