"""The route of what several changes save together."""

from __future__ import annotations

import msgspec
import pytest

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.change_model import change_model, encode_model
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.proof.ledger import Machine, Proof, append, digest_of, ledger_file
from tb_perfadvisor.proof.results import Effect
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.testing import draw, run_of
from tests.support.served_tab import Tab, error_of

# Each step of 10 ms waits 4 ms for input.
SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |DDDDoo....|DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|.....KKKKK|
"""


@pytest.fixture
def report(tab: Tab) -> Report:
    """The report of the only capture, once it is stored."""
    tab.put("run")
    analysis = analyze_run(run_of(draw(SLOW)), Config())
    report = build_report(analysis, Config())
    content = msgspec.json.encode(report)
    model = encode_model(change_model(analysis))
    tab.store(tab.only_id(), report__json=content, changes__bin=model)
    return report


@pytest.fixture
def address(tab: Tab, report: Report) -> str:
    return f"api/v1/captures/{tab.only_id()}/combination"


def test_all_findings_save_what_the_report_says(tab: Tab, address: str, report: Report) -> None:
    query = "&".join(f"finding={place}" for place in range(len(report.findings)))
    answer = tab.get(f"{address}?{query}")
    assert answer.status_code == 200
    assert report.combined_saving is not None
    assert answer.json == msgspec.to_builtins(report.combined_saving)
    # The 4 ms of input are the most that one finding saves of a step.
    assert tab.get(f"{address}?finding=0&finding=0").json["high_ns"] == 4_000_000


def test_proved_change_counts_with_what_was_measured(
    tab: Tab, address: str, report: Report
) -> None:
    change = next(each.change for each in report.findings[0].remedies if each.change)
    proof = Proof(
        tried_unix_s=1,
        recording=digest_of(report),
        change=change,
        measured=Effect(0.08, 0.1, 0.12),
        verdict="faster",
        machine=Machine("Linux x86_64", "", 2, None, ""),
    )
    append([proof], ledger_file())
    try:
        answer = tab.get(f"{address}?finding=0").json
    finally:
        ledger_file().unlink()
    # 8, 10 and 12 % of 10 ms.
    assert (answer["low_ns"], answer["expected_ns"], answer["high_ns"]) == (
        800_000,
        1_000_000,
        1_200_000,
    )


@pytest.mark.parametrize("query", ["", "?finding=99", "?finding=-1", "?finding=x", "?finding=٣"])
def test_findings_are_named_by_their_places(tab: Tab, address: str, query: str) -> None:
    answer = tab.get(address + query)
    assert answer.status_code == 400
    assert "places" in error_of(answer)["message"]


def test_capture_without_a_result_has_no_combination(tab: Tab) -> None:
    tab.put("other")
    answer = tab.get(f"api/v1/captures/{tab.only_id()}/combination?finding=0")
    assert answer.status_code == 409


def test_other_sites_make_no_combination(tab: Tab, address: str) -> None:
    answer = tab.get(f"{address}?finding=0", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403
