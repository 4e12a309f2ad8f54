"""Timelines embedded in a page equal the answers of the route."""

from __future__ import annotations

import msgspec

from tb_perfadvisor.api import analyze
from tb_perfadvisor.contract.model import EventsEvidence, EvidenceRow
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.report.timeline.embedded import MAX_EVENTS, MAX_ROWS, make_timelines
from tb_perfadvisor.report.timeline.stored_events import collect_events, select_events
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.testing.builder import ms

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


def report(config: Config) -> Report:
    return analyze(run_of(draw(SLOW)), config)


def test_timelines_are_included_on_request() -> None:
    assert "timelines" not in (report(Config(with_views=True)).views or {})
    assert report(Config(with_timelines=True)).views is None
    views = report(Config(with_views=True, with_timelines=True)).views
    assert views is not None
    assert views["timelines"]


def test_timelines_show_the_first_view_and_one_zoomed_out() -> None:
    plain_report = report(Config())
    window = collect_events(draw(SLOW), 0)
    stored = make_timelines(plain_report.findings, window)
    assert plain_report.findings[0].rule_id == "input-stall"
    (evidence,) = [
        item for item in plain_report.findings[0].evidence if isinstance(item, EventsEvidence)
    ]
    first = evidence.rows[0]
    assert (first.start_ns, first.duration_ns) == (0, ms(4))
    # The fetch fills half of 8 ms around its middle at 2 ms: from -2 ms, so from 0, to 8 ms.
    ranges = [
        (timeline["from_ns"], timeline["to_ns"]) for timeline in stored if timeline["finding"] == 0
    ]
    assert [from_ns for from_ns, _ in ranges[:2]] == [0, 0]
    assert ranges[0][1] >= ms(8)
    assert ranges[1][1] >= ms(24)
    for timeline in stored:
        answer = select_events(
            window, timeline["from_ns"], timeline["to_ns"], MAX_EVENTS, timeline["finding"]
        )
        assert timeline == {"finding": timeline["finding"], **answer}


def test_timelines_are_bounded() -> None:
    plain_report = report(Config())
    (finding,) = plain_report.findings[:1]
    row = EvidenceRow(
        worker=0, start_ns=ms(1), duration_ns=ms(1), track="", name="", step=None, source=None
    )
    events = EventsEvidence(title="", rows=[row] * 20, truncated=0)
    many = [msgspec.structs.replace(finding, evidence=[events])] * 50
    stored = make_timelines(many, collect_events(draw(SLOW), 0))
    assert len(stored) == 10 * (MAX_ROWS + 1)
    assert make_timelines(many, collect_events(draw(SLOW), 1)) == []  # of another worker
