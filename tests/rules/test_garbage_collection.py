from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.launch.host_work import GarbageCollection
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind

# PyTorch 2.13's names for events of the collector.
LEGEND = {"G": host("Python GC", EventKind.PYTHON)}
SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |ppppppppp.|ppppppppp.|
    main   |oGGGGGGGo.|oGGGGGGGo.|
    gpu 7  |K.......KK|K.......KK|
"""
FIXED = """
    cell 1ms
    step   |...|...|
    main   |pp.|pp.|
    main   |oo.|oo.|
    gpu 7  |KKK|KKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(GarbageCollection, slow=SLOW, fixed=FIXED, saves="7ms", legend=LEGEND)
    assert checked.findings[0].summary.endswith("(1 collection per step).")


def test_a_collection_that_overlaps_device_work_costs_nothing() -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |oGGGGGGGo.|oGGGGGGGo.|
        gpu 7  |KKKKKKKKKK|KKKKKKKKKK|
    """
    assert find(GarbageCollection, trace, legend=LEGEND) == ()


def test_without_python_frames_it_is_not_applicable() -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |o.......o.|o.......o.|
        gpu 7  |K.......KK|K.......KK|
    """
    assert find(GarbageCollection, trace) is None


def test_just_below_and_just_above_the_limit() -> None:
    settings = {"minimum_share": 0.71}
    assert find(GarbageCollection, SLOW, legend=LEGEND, settings=settings) == ()
    settings = {"minimum_share": 0.69}
    assert len(find(GarbageCollection, SLOW, legend=LEGEND, settings=settings) or ()) == 1


@pytest.mark.frameworks
def test_a_recorded_collection(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="records with PyTorch")
    cycles = [[i] for i in range(200_000)]
    for cycle in cycles:
        cycle.append(cycle)
    profiling = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True
    )
    with profiling as profiler:
        for _ in range(3):
            torch.ones(3).add_(1)
            gc.collect()
        torch.ones(3).add_(1)
    path = tmp_path / "worker0.1.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    first = analyze(path).findings[0]
    assert first.rule_id == "garbage-collection"
    assert "3 collections in all" in first.summary
