"""Reports carry what users say about findings, and begin with none that they decided against."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.contract.names import finding_id
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config, read_config
from tb_perfadvisor.remark import Remark
from tb_perfadvisor.remarks.attach import is_set_aside, with_remarks
from tb_perfadvisor.remarks.store import settings_text
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.testing import draw, run_of

# Each step of 10 ms waits 4 ms for input.
SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |DDDDoo....|DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|.....KKKKK|
"""


@pytest.fixture(scope="module")
def report() -> Report:
    report = build_report(analyze_run(run_of(draw(SLOW)), Config()), Config())
    return replace(report, run="lm/step_00001020")


def first_id(report: Report) -> str:
    assert report.first is not None
    return finding_id(report.findings, report.first.index)


def test_note_is_shown_and_changes_nothing_else(report: Report) -> None:
    noted = with_remarks(report, [Remark("input-stall", text="slow disk")])
    (remark,) = [finding.remark for finding in noted.findings if finding.remark is not None]
    assert (remark.wont_fix, remark.text) == (False, "slow disk")
    without = [replace(finding, remark=None) for finding in noted.findings]
    assert replace(noted, findings=without) == report


@pytest.mark.parametrize(
    ("run", "is_noted"), [("", True), ("lm/step_00001020", True), ("lm", True), ("other", False)]
)
def test_note_holds_for_all_recordings_of_its_run(report: Report, run: str, is_noted: bool) -> None:
    noted = with_remarks(report, [Remark("input-stall", text="x", run=run)])
    assert any(finding.remark for finding in noted.findings) == is_noted


def test_what_stays_as_it_is_comes_not_first(report: Report) -> None:
    general = next(finding for finding in report.findings if finding.refines is None)
    noted = with_remarks(report, [Remark(general.rule_id, wont_fix=True)])
    for place, finding in enumerate(noted.findings):
        is_about_it = general.rule_id in (finding.rule_id, finding.refines)
        assert is_set_aside(noted.findings, place) == is_about_it
    assert noted.first is None or not is_set_aside(noted.findings, noted.first.index)
    everything = [
        Remark(finding_id(report.findings, place), wont_fix=True)
        for place in range(len(report.findings))
    ]
    assert with_remarks(report, everything).first is None
    # A note alone leaves the order of work as it is.
    assert first_id(with_remarks(report, [Remark(first_id(report), text="x")])) == first_id(report)


# Each step of 12 ms waits 4 ms for input, and 1 ms while the host waits for the device.
TWO_CHANGES = """
    cell 1ms
    step   |............|............|............|
    main   |DDDDooSSSSSS|DDDDooSSSSSS|DDDDooSSSSSS|
    gpu 7  |.....KKK.KKK|.....KKK.KKK|.....KKK.KKK|
"""


@pytest.fixture(scope="module")
def several() -> Report:
    return build_report(analyze_run(run_of(draw(TWO_CHANGES)), Config()), Config())


def generals(report: Report) -> list[str]:
    return [finding.rule_id for finding in report.findings if finding.refines is None]


def test_the_headline_is_that_of_what_is_left(several: Report) -> None:
    assert generals(several) == ["input-stall", "blocked-stream", "device-synchronization"]
    assert several.headline.startswith("Waiting for input takes 33.3 % of each step. Feed the")
    noted = with_remarks(several, [Remark("input-stall", wont_fix=True)])
    assert first_id(noted) == "blocked-stream"
    left = next(each for each in several.findings if each.rule_id == "blocked-stream")
    assert noted.headline == f"{left.headline}. 1 set aside"
    assert "queued work" in left.headline
    everything = with_remarks(several, [Remark(id, wont_fix=True) for id in generals(several)])
    assert everything.first is None
    assert everything.headline == f"{several.headline_without_changes}. 3 set aside"
    # What is further down changes no headline.
    below = with_remarks(several, [Remark("device-synchronization", wont_fix=True)])
    assert below.headline == f"{several.headline}. 1 set aside"


def test_a_specific_finding_set_aside_leaves_the_general_one(several: Report) -> None:
    specific = next(each for each in several.findings if each.refines == "input-stall")
    noted = with_remarks(several, [Remark(specific.rule_id, wont_fix=True)])
    assert first_id(noted) == "input-stall"
    assert noted.combined_saving == several.combined_saving


def test_what_is_set_aside_counts_in_no_sum(several: Report) -> None:
    # 3 ms of input and 347 us of synchronizations, which share no time.
    assert several.combined_saving is not None
    assert several.combined_saving.expected_ns == 3_346_667
    noted = with_remarks(several, [Remark("input-stall", wont_fix=True)])
    assert noted.combined_saving is not None
    assert noted.combined_saving.expected_ns == 346_667
    assert noted.combined_saving.share_expected == pytest.approx(346_667 / 12e6, rel=1e-5)
    everything = with_remarks(several, [Remark(id, wont_fix=True) for id in generals(several)])
    assert everything.combined_saving is None


def test_exported_notes_are_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    remarks = (
        Remark("input-stall", wont_fix=True, text='a "slow"\ndisk \\', run="lm/a b"),
        Remark("slow-batch~2", text="später ☂"),
    )
    path = tmp_path_factory.mktemp("settings") / "perfadvisor.toml"
    path.write_text(settings_text(remarks), encoding="utf-8")
    read = read_config(path).remarks
    assert [(each.finding, each.wont_fix, each.run) for each in read] == [
        ("input-stall", True, "lm/a b"),
        ("slow-batch~2", False, ""),
    ]
    assert read[1].text == "später ☂"
    assert settings_text(()).startswith("#")
