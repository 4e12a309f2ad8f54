"""Routes of events: ranges of time, and excerpts for Perfetto."""

import gzip
import json
import re

import msgspec
import pytest

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.timeline.collect_events import collect_events
from tb_perfadvisor.report.timeline.window import encode_events
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.trace import Assembler, EventKind, Source, TrackKind
from tests.support.served_tab import Tab, error_of

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


def window_bytes() -> bytes:
    assembler = Assembler()
    main = assembler.add_track(TrackKind.HOST_THREAD, label="main")
    names = assembler.intern_all(["a", "b"])
    assembler.add_events(
        [0, 100], [50, 50], kind=[EventKind.OPERATOR, EventKind.LAUNCH], name=names, track=main
    )
    trace = assembler.finish(Source(path="x", format="test"))
    return encode_events(collect_events(Signals(run_of(trace))))


def test_window_returns_the_events_in_a_range(tab: Tab) -> None:
    tab.put("run")
    capture_id = tab.only_id()
    address = f"api/v1/captures/{capture_id}/window"
    assert tab.get(address).status_code == 409
    tab.store(capture_id, window__npz=window_bytes())
    window = tab.get(f"{address}?from_ns=90&to_ns=200&bins=110").json
    assert (window["worker"], window["from_ns"], window["to_ns"]) == (0, 90, 200)
    assert window["texts"] == ["b"]
    assert (window["boxes"]["start_ns"], window["boxes"]["duration_ns"]) == ([10], [50])
    whole = tab.get(address).json
    assert (whole["worker"], whole["from_ns"], whole["to_ns"]) == (0, 0, 150)
    assert whole["boxes"]["count"] == [1, 1]
    assert tab.get(f"{address}?finding=2").json == whole
    assert tab.get(f"{address}?worker=1").status_code == 404


@pytest.mark.parametrize(
    "query",
    [
        *("from_ns=-1", "from_ns=x", "from_ns=5&to_ns=5", "bins=0", f"to_ns={2**70}"),
        *("worker=a", "finding=-1", f"finding={2**70}"),
    ],
)
def test_window_rejects_bad_queries(tab: Tab, query: str) -> None:
    tab.put("run")
    capture_id = tab.only_id()
    tab.store(capture_id, window__npz=window_bytes())
    answer = tab.get(f"api/v1/captures/{capture_id}/window?{query}")
    assert answer.status_code == 400
    error_of(answer)


def test_an_event_with_what_it_leads_to(tab: Tab) -> None:
    tab.put("run")
    capture_id = tab.only_id()
    address = f"api/v1/captures/{capture_id}/event"
    assert tab.get(f"{address}?event=0").status_code == 409
    tab.store(capture_id, window__npz=encode_events(collect_events(Signals(run_of(draw(SLOW))))))
    names = [tab.get(f"{address}?event={place}").json["name"] for place in range(3)]
    assert len(set(names)) > 1
    assert tab.get(f"{address}?event=99").json is None
    assert tab.get(f"{address}?event=0&worker=1").status_code == 404
    assert tab.get(f"{address}?event=-1").status_code == 400


def test_sums_of_a_range_and_of_the_same_part_of_another_step(tab: Tab) -> None:
    tab.put("run")
    capture_id = tab.only_id()
    address = f"api/v1/captures/{capture_id}/sums"
    assert tab.get(address).status_code == 409
    tab.store(capture_id, window__npz=encode_events(collect_events(Signals(run_of(draw(SLOW))))))
    # The device waits for input in the first 4 ms of each step of 10 ms, and works from 5 ms on.
    sums = tab.get(f"{address}?from_ns=2000000&to_ns=7000000").json
    causes = {row["cause"]: row["total_ns"] for row in sums["causes"]}
    assert (causes["input"], sum(causes.values())) == (2_000_000, 5_000_000)
    assert sums["step"] == {"number": 0, "from_part": 0.2, "to_part": 0.7}
    same = tab.get(f"{address}?step=1&from_part=0.2&to_part=0.7").json
    assert (same["from_ns"], same["to_ns"]) == (12_000_000, 17_000_000)
    assert same["causes"] == sums["causes"]
    for query in ("from_part=x", "from_part=1e9", "from_ns=5&to_ns=5", "step=-1"):
        assert tab.get(f"{address}?{query}").status_code == 400


def test_the_critical_path_of_a_step(tab: Tab) -> None:
    tab.put("run")
    capture_id = tab.only_id()
    tab.store(capture_id, window__npz=encode_events(collect_events(Signals(run_of(draw(SLOW))))))
    path = tab.get(f"api/v1/captures/{capture_id}/path?step=1").json
    assert path["step"] == 1
    assert sum(end - start for _, start, end in path["segments"]) == 10_000_000


def test_search_finds_events_by_name(tab: Tab) -> None:
    tab.put("run")
    capture_id = tab.only_id()
    address = f"api/v1/captures/{capture_id}/search"
    assert tab.get(f"{address}?text=B").status_code == 409
    tab.store(capture_id, window__npz=window_bytes())
    found = tab.get(f"{address}?text=B").json
    assert (found["count"], found["total_ns"]) == (1, 50)
    assert [event["name"] for event in found["events"]] == ["b"]
    assert [(row["name"], row["total_ns"]) for row in found["names"]] == [("b", 50)]
    for query in ("", "?text=", f"?text={'x' * 201}"):
        assert tab.get(f"{address}{query}").status_code == 400


def test_excerpt_marks_the_time_of_a_finding(tab: Tab) -> None:
    tab.put("a b/<run>")
    capture_id = tab.only_id()
    address = f"api/v1/captures/{capture_id}/excerpt"
    assert tab.get(address).status_code == 409
    trace = draw(SLOW)
    config = Config(select=("input-stall",))
    analysis = analyze_run(run_of(trace), config)
    claims = analysis.findings[0].claims
    tab.store(
        capture_id,
        window__npz=encode_events(collect_events(analysis.signals, [claims])),
        report__json=msgspec.json.encode(build_report(analysis, config)),
    )
    answer = tab.get(f"{address}?finding=0&from_ns=0&to_ns=5000000")
    assert answer.content_type == "application/gzip"
    # Without this header, browsers save the file as it is.
    assert "Content-Encoding" not in answer.headers
    name = answer.headers["Content-Disposition"]
    assert re.fullmatch(
        r'attachment; filename="perf_advisor_a_b_run[\w.-]*_input-stall.json.gz"', name
    )
    content = json.loads(gzip.decompress(answer.data))
    # The device waits in the first four milliseconds.
    events = content["traceEvents"]
    marks = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert [(mark["ts"], mark["dur"]) for mark in marks] == [(0, 4000)]
    # Without a range, it covers the evidence; without a finding, the whole trace without marks.
    around = json.loads(gzip.decompress(tab.get(f"{address}?finding=0").data))["otherData"]
    assert around["to_ns"] - around["from_ns"] == pytest.approx(2 * 4_000_000, rel=0.01)
    whole = json.loads(gzip.decompress(tab.get(address).data))
    assert whole["otherData"]["to_ns"] == trace.duration_ns
    assert all(event["pid"] != 1 for event in whole["traceEvents"])
    claims = tab.get(f"api/v1/captures/{capture_id}/window?to_ns=2000000").json["claims"]
    assert claims == [{"finding": 0, "intervals": [[0, 2_000_000]]}]
    assert tab.get(f"{address}?finding=1").status_code == 404
    assert tab.get(f"{address}?finding=x").status_code == 400
    assert tab.get(f"{address}?from_ns=5&to_ns=5").status_code == 400
