"""Timelines embedded in a page equal the answers of the route."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_perfadvisor import analyze
from tb_perfadvisor.contract.model import EventsEvidence, EvidenceRow
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.report.timeline.collect_events import collect_events
from tb_perfadvisor.report.timeline.window import (
    BOXES_OF_EVIDENCE,
    BOXES_OF_STEP,
    BOXES_OF_WHOLE,
    MAX_ROWS,
    make_timelines,
    select_window,
    typical_range,
)
from tb_perfadvisor.signals import Signals
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


def test_a_step_everything_and_the_first_evidence() -> None:
    plain_report = report(Config())
    stored = collect_events(Signals(run_of(draw(SLOW))))
    timelines = make_timelines(plain_report.findings, stored)
    ranges = [(timeline["from_ns"], timeline["to_ns"]) for timeline in timelines]
    assert ranges[0] == typical_range(stored)
    assert ranges[1] == (0, stored.whole_ns)
    assert len(set(ranges)) == len(ranges)
    (evidence,) = [
        item for item in plain_report.findings[0].evidence if isinstance(item, EventsEvidence)
    ]
    first = evidence.rows[0]
    assert (first.start_ns, first.duration_ns) == (0, ms(4))
    # The fetch fills half of 8 ms around its middle at 2 ms: from -2 ms, so from 0, to 8 ms.
    assert (0, ms(8) + 3) in ranges
    assert (0, ms(24) + 3) in ranges
    for place, timeline in enumerate(timelines):
        boxes = (BOXES_OF_STEP, BOXES_OF_WHOLE)[place] if place < 2 else BOXES_OF_EVIDENCE
        assert timeline == select_window(stored, *ranges[place], 1_024, max_boxes=boxes)


def test_the_step_of_a_rare_finding_is_included() -> None:
    plain_report = report(Config())
    # Time of the second step alone, and the first one is the typical one.
    claims = [np.array([[ms(12), ms(14)]])]
    stored = collect_events(Signals(run_of(draw(SLOW))), claims)
    shown = [
        (part["from_ns"], part["to_ns"]) for part in make_timelines(plain_report.findings, stored)
    ]
    assert shown[0] == (0, ms(10) + 250_000)
    assert shown[2] == (ms(10) - 250_000, ms(20) + 250_000)


def test_timelines_are_bounded() -> None:
    plain_report = report(Config())
    (finding,) = plain_report.findings[:1]
    rows = [
        EvidenceRow(
            worker=0,
            start_ns=ms(at % 20),
            duration_ns=ms(1) + at,
            track="",
            name="",
            step=None,
            source=None,
        )
        for at in range(50 * 20)
    ]
    many = [
        msgspec.structs.replace(
            finding,
            evidence=[EventsEvidence(title="", rows=rows[at : at + 20], truncated=0)],
        )
        for at in range(0, len(rows), 20)
    ]
    timelines = make_timelines(many, collect_events(Signals(run_of(draw(SLOW)))))
    assert len(timelines) == 2 + 10 * (MAX_ROWS + 1)
