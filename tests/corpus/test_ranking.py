"""What every report's order and amounts keep to, whatever was profiled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tb_perfadvisor.engine.ranking import LEADS_SHARE, SIMILAR_SHARE

Json = dict[str, Any]
ROUNDING_NS = 2
"""Per finding: savings are divided by the number of steps and rounded."""


def name_of(report: Json) -> str:
    return f"{report['run']} {report['session']}"


def branches(report: Json) -> Iterator[tuple[Json, list[Json]]]:
    """Each finding at the top level, with those that explain it."""
    findings: list[Json] = report["findings"]
    tops = [place for place, finding in enumerate(findings) if finding["refines"] is None]
    for begin, end in itertools.pairwise([*tops, len(findings)]):
        yield findings[begin], findings[begin + 1 : end]


def weight_ns(finding: Json) -> float:
    """What decides the order: the expected saving, or the middle of the bounds."""
    if finding["saving"] is not None:
        return float(finding["saving"]["expected_ns"])
    return finding["bounds"]["high_ns"] / 2 if finding["bounds"] is not None else 0.0


def costs_accuracy_or_information(finding: Json) -> bool:
    remedies = finding["remedies"]
    return bool(remedies) and all(
        {"accuracy", "information"} & remedy["costs"].keys() for remedy in remedies
    )


def test_no_finding_saves_more_than_the_one_that_it_explains(corpus_reports: list[Json]) -> None:
    seen = 0
    for report in corpus_reports:
        for general, parts in branches(report):
            for part in parts:
                assert part["refines"] == general["rule_id"], name_of(report)
                limits, saving = general["saving"] or general["bounds"], part["saving"]
                if limits is None or saving is None:
                    continue
                seen += 1
                most_ns = limits.get("expected_ns", limits["high_ns"])
                assert saving["expected_ns"] <= most_ns, name_of(report)
                assert saving["high_ns"] <= limits["high_ns"], name_of(report)
                assert saving["marginal_ns"] == 0
    assert seen > 20


def test_marginal_savings_add_up_to_a_part_of_the_window(corpus_reports: list[Json]) -> None:
    for report in corpus_reports:
        combined = report["combined_saving"]
        if combined is None:
            continue
        window_ns = report["overview"]["window_ns"] / max(report["steps"]["used"], 1)
        savings = [general["saving"] for general, _ in branches(report)]
        marginal_ns = sum(saving["marginal_ns"] for saving in savings if saving is not None)
        rounding_ns = ROUNDING_NS * (len(savings) + 1)
        assert abs(marginal_ns - combined["expected_ns"]) <= rounding_ns, name_of(report)
        assert combined["low_ns"] <= combined["expected_ns"] <= combined["high_ns"]
        assert combined["high_ns"] <= window_ns + 1, name_of(report)
        # The high end of each finding is possible, and so is that of all together.
        for general, _ in branches(report):
            limits = general["saving"] or general["bounds"]
            high_ns = 0 if limits is None else limits["high_ns"]
            assert high_ns <= combined["high_ns"] + rounding_ns, name_of(report)


def test_findings_are_in_order_of_what_they_are_worth(corpus_reports: list[Json]) -> None:
    for report in corpus_reports:
        tops = [general for general, _ in branches(report)]
        worth = [weight_ns(general) for general in tops]
        # The first one may have passed a lossy one, or one that is less sure to save as much.
        rest = worth if worth == sorted(worth, reverse=True) else worth[1:]
        assert rest == sorted(rest, reverse=True), name_of(report)
        if rest is not worth:
            first, second = tops[0]["saving"], tops[1]["saving"]
            if costs_accuracy_or_information(tops[1]) or second is None:
                share = LEADS_SHARE
            else:
                share = SIMILAR_SHARE
                assert first["low_ns"] >= second["low_ns"], name_of(report)
            assert worth[0] >= share * worth[1] - ROUNDING_NS, name_of(report)


def test_lossy_advice_never_leads_while_other_advice_is_worth_half_as_much(
    corpus_reports: list[Json],
) -> None:
    lossy = 0
    for report in corpus_reports:
        if report["first"] is None:
            continue
        first = report["findings"][report["first"]["index"]]
        if not costs_accuracy_or_information(first) or first["saving"] is None:
            continue
        lossy += 1
        others = [
            general["saving"]["expected_ns"]
            for general, _ in branches(report)
            if general["saving"] is not None and not costs_accuracy_or_information(general)
        ]
        enough_ns = LEADS_SHARE * first["saving"]["expected_ns"]
        assert max(others, default=0) < enough_ns, name_of(report)
    assert lossy > 0


def test_nobody_leads_with_time_that_has_no_name(corpus_reports: list[Json]) -> None:
    for report in corpus_reports:
        if report["first"] is None:
            continue
        first = report["findings"][report["first"]["index"]]
        if first["rule_id"] == "python-overhead" and "nothing in the profile" in first["summary"]:
            assert first["remedies"][0]["change"] == "record-host-code", name_of(report)


def test_communication_comes_first_where_most_of_the_step_waits_for_it(
    corpus_reports: list[Json],
) -> None:
    # Truths of the raw events: 66 % exposed, and half of the step exposed or awaited.
    for run in ("tracelens/mi300/resnet_act_checkpoint", "hta/trace_filter"):
        (report,) = (report for report in corpus_reports if report["run"] == run)
        assert report["findings"][report["first"]["index"]]["rule_id"] == "exposed-communication"


def test_no_two_rows_of_a_table_claim_the_same_exposed_time(corpus_reports: list[Json]) -> None:
    seen = 0
    for report in corpus_reports:
        parts = {part["cause"]: part["total_ns"] for part in report["overview"]["breakdown"]}
        for finding in report["findings"]:
            cause = {"exposed-communication": "communication", "exposed-copies": "copies"}.get(
                finding["rule_id"]
            )
            tables = [each for each in finding["evidence"] if each["kind"] == "table"]
            for table in tables if cause is not None else ():
                keys = [column["key"] for column in table["columns"]]
                if "exposed_ns" not in keys:
                    continue
                seen += 1
                exposed_ns = sum(row[keys.index("exposed_ns")] for row in table["rows"])
                assert exposed_ns <= parts[cause], f"{name_of(report)}: {table['title']}"
    assert seen > 20
