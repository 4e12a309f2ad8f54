"""The route of patches of the user's code."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.patches import report_with
from tests.support.served_tab import Tab, error_of

LOADER = "from torch.utils.data import DataLoader\n\nloader = DataLoader(data)\n"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A directory with the program's code."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(LOADER, encoding="utf-8")
    return code


def test_a_patch_and_the_command_that_proves_it(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = Tab(tmp_path, monkeypatch, perfadvisor_repo=str(code))
    tab.put("my run")
    address = f"api/v1/captures/{tab.only_id()}/patches"
    assert tab.get(address).status_code == 409
    report = report_with("loader-workers")
    (finding,) = report.findings
    (remedy,) = finding.remedies
    remedies = [replace(remedy, change="loader-workers")]
    report = replace(report, findings=[replace(finding, remedies=remedies)])
    tab.store(tab.only_id(), report__json=msgspec.json.encode(report))
    found = tab.get(address).get_json()[0]
    assert found["title"] == report.findings[0].title
    assert found["changes"] == ["train.py:3: num_workers=4, persistent_workers=True"]
    assert "-loader = DataLoader(data)\n+loader = DataLoader(data, num_workers=4" in found["patch"]
    assert found["command"] == (
        "perfadvisor try 'logs/my run' --change loader-workers -- python train.py"
    )
    assert tab.get("api/v1/captures").get_json()["has_code"] is True
    # Code that was edited gets a patch of its own.
    (code / "train.py").write_text("import os\n" + LOADER, encoding="utf-8")
    found = tab.get(address).get_json()[0]
    assert found["changes"] == ["train.py:4: num_workers=4, persistent_workers=True"]


def test_why_there_is_no_patch(tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code / "train.py").write_text(LOADER + "other = DataLoader(data)\n", encoding="utf-8")
    tab = Tab(tmp_path, monkeypatch, perfadvisor_repo=str(code))
    tab.put("run")
    report = report_with("loader-workers")
    tab.store(tab.only_id(), report__json=msgspec.json.encode(report))
    found = tab.get(f"api/v1/captures/{tab.only_id()}/patches").get_json()[0]
    assert (found["patch"], found["reason"]) == ("", "2 places match")
    assert found["places"] == ["train.py:3", "train.py:4"]


def test_without_the_code_there_are_no_patches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = Tab(tmp_path, monkeypatch)
    tab.put("run")
    answer = tab.get(f"api/v1/captures/{tab.only_id()}/patches")
    assert answer.status_code == 404
    assert tab.get("api/v1/captures").get_json()["has_code"] is False
    assert "--perfadvisor_repo" in error_of(answer)["hint"]
