"""The report of a log of torch.compile alone: its numbers, and what its tables leave open."""

from __future__ import annotations

from pathlib import Path

from tb_perfadvisor import analyze
from tb_perfadvisor.contract.model import TableEvidence
from tb_perfadvisor.report.key_numbers import compile_log_numbers
from tb_perfadvisor.trace.compile_log import CompileLog
from tests.support.compile_logs import artifact, compiled, example_log


def test_numbers_are_those_of_the_compiler(tmp_path: Path) -> None:
    path = tmp_path / "dedicated_log_torch_trace_x.log"
    path.write_bytes(example_log())
    numbers = {each.id: (each.value, each.notes) for each in analyze(path).key_numbers}
    assert numbers == {
        # 2.0 and 0.5 s, and 1.5 s for the backward graph.
        "compile-time": (4_000_000_000, ["2 compilations"]),
        "graph-breaks": (2, []),
        "recompilations": (1, []),
        # A miss of each cache, then a hit.
        "cache-hits": (1, ["2 misses, 0 not used"]),
    }


def test_unknown_numbers_are_none() -> None:
    numbers = {each.id: each for each in compile_log_numbers(CompileLog("x"))}
    assert numbers["cache-hits"].value is None
    assert numbers["cache-hits"].notes == ["no use of a cache logged"]


def test_functions_without_a_backward_graph_have_no_time_of_it(tmp_path: Path) -> None:
    path = tmp_path / "dedicated_log_torch_trace_x.log"
    reason = {"cache_bypass_reason": 'Unsupported target "flex"\n Function module: torch.ops'}
    path.write_bytes(
        compiled("0/0", "forward", 9, duration_us=6_000_000)
        + artifact("aotautograd_cache_bypass", "0/0", reason)
    )
    (finding,) = analyze(path).findings
    tables = {each.title: each for each in finding.evidence if isinstance(each, TableEvidence)}
    functions, caches = tables["Compile time by function"], tables["Caches of compiled code"]
    assert functions.rows == [["forward", "project/train.py:9", 1, None, None, 6_000_000_000]]
    # The reason is text in JSON: its first line, without the escapes.
    assert caches.rows == [["AOTAutograd", 0, 0, 1, 'Unsupported target "flex"']]
