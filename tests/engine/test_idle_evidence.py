"""Every finding about idle time shows the annotations around it."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.engine.analyze import run_rule
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.evidence.host import annotation_table
from tb_perfadvisor.rules.finding import Finding, Saving, Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, host, ms, run_of
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import single, total_ns

LEGEND = {"f": host("forward", EventKind.ANNOTATION), "b": host("backward", EventKind.ANNOTATION)}
# The device works for the first and the last cell of a step; it idles 3 ms in `forward`, 4 in
# `backward` and 1 outside.
DRAWING = """
    cell 1ms
    step  |..........|..........|
    main  |Lfffbbbb.L|Lfffbbbb.L|
    gpu 7 |K........K|K........K|
"""


def claiming(start_ms: float, end_ms: float) -> type[Rule]:
    class Claiming(Rule):
        id, title, category = "claiming", "Do", "launch"

        def check(self, signals: Signals) -> Iterable[Finding]:
            claims = single(ms(start_ms), ms(end_ms))
            total = total_ns(claims)
            yield Finding("something", Saving(total, total, total, claims, "measured"))

    return Claiming


def signals_of(text: str = DRAWING) -> Signals:
    return Signals(run_of(draw(text, legend=LEGEND)))


def tables(rule: type[Rule], signals: Signals) -> list[Table]:
    (finding,) = run_rule(rule(), signals).findings
    return [evidence for evidence in finding.evidence if isinstance(evidence, Table)]


def test_claimed_idle_time_is_named() -> None:
    (table,) = tables(claiming(2, 9), signals_of())
    assert table.title == "Idle time by annotation"
    # Of 20 ms: 4 in `backward`, 2 in `forward`, 1 outside.
    assert table.rows == (
        ("backward", ms(4), 0.2),
        ("forward", ms(2), 0.1),
        ("(no annotation)", ms(1), 0.05),
    )


def test_findings_about_busy_time_are_left_alone() -> None:
    # From 8 to 11, one cell is idle and two are busy.
    assert tables(claiming(8, 11), signals_of()) == []


def test_without_annotations_there_is_no_table() -> None:
    bare = "cell 1ms\nstep |..........|\nmain |L........L|\ngpu 7 |K........K|"
    assert tables(claiming(2, 9), signals_of(bare)) == []
    assert annotation_table(signals_of(), single(ms(8), ms(9))) == ()
