"""Notes on the log directory, the Profile tab and the machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tb_perfadvisor import environment
from tb_perfadvisor.note import Note
from tb_perfadvisor.plugin import doctor
from tb_perfadvisor.plugin.catalog import Catalog
from tb_perfadvisor.plugin.log_directories import Root, Surroundings
from tests.support.waiting import eventually

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"
SESSION = "plugins/profile/2026_01_02_03_04_05"
Diagnose = Callable[..., dict[str, Note]]


@pytest.fixture
def diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Diagnose:
    """Puts an XPlane at each of the paths and returns the notes by id."""
    # Keep the driver and libraries of this machine out of the notes.
    monkeypatch.setattr(doctor, "recording_notes", list)
    monkeypatch.setattr(environment, "_import_problem", lambda module: "")
    monkeypatch.setattr(environment, "_plugin", lambda name: "some.module")

    def diagnose(*paths: str, has_profile: bool = True) -> dict[str, Note]:
        (source,) = (DEMO_LOGS / "jax_healthy").rglob("*.xplane.pb")
        for path in paths:
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
        catalog = Catalog((Root(str(tmp_path), ""),))
        catalog.refresh(wait_s=10)
        eventually(lambda: not catalog.is_scanning)
        surroundings = Surroundings(str(tmp_path), catalog.roots, has_profile)
        notes = doctor.diagnose(catalog.snapshot, surroundings)
        by_id = {note.id: note for note in notes}
        assert len(by_id) == len(notes)
        assert all(str(tmp_path) not in note.message + note.remedy for note in notes)
        return by_id

    return diagnose


def test_good_session_has_no_notes(diagnosed: Diagnose) -> None:
    assert diagnosed(f"run/{SESSION}/host.xplane.pb") == {}


def test_command_moves_a_file_to_where_the_profile_tab_sees_it(
    diagnosed: Diagnose, tmp_path: Path
) -> None:
    path = "my run/host.xplane.pb"
    diagnosed(path)
    os.utime(tmp_path / path, (86_400, 86_400))
    note = diagnosed()["profile-tab-layout"]
    assert path in note.message
    before, command, after = note.remedy.split("`")
    assert (before, after) == ("In the log directory: ", "")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "my run/plugins/profile/1970_01_02_00_00_00/host.xplane.pb").is_file()
    assert diagnosed() == {}


def test_truncated_xplane_is_reported(diagnosed: Diagnose, tmp_path: Path) -> None:
    path = f"run/{SESSION}/host.xplane.pb"
    diagnosed(path)
    whole = (tmp_path / path).read_bytes()
    (tmp_path / path).write_bytes(whole[:-100])
    (note,) = diagnosed().values()
    assert (note.id, note.severity) == ("xplane-broken", "error")
    assert note.message == (
        f"`{path}` is damaged: it is truncated. Copy it again from where it was written."
    )


def test_session_cached_without_tools_is_reported(diagnosed: Diagnose, tmp_path: Path) -> None:
    path = f"run/{SESSION}/host.xplane.pb"
    cached_tools = tmp_path / f"run/{SESSION}/.cached_tools.json"
    diagnosed(path)
    cached_tools.write_text(json.dumps({"version": 1, "files": {}, "tools": ["overview_page"]}))
    assert diagnosed() == {}
    cached_tools.write_text("{")
    assert diagnosed() == {}
    cached_tools.write_text(json.dumps({"version": 1, "files": {}, "tools": []}))
    note = diagnosed()["profile-tab-remembers"]
    command = note.remedy.split("`")[1]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert diagnosed() == {}


def test_missing_or_broken_profile_tab_is_reported(
    diagnosed: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"run/{SESSION}/host.xplane.pb"
    monkeypatch.setattr(environment, "_import_problem", lambda module: "No module named 'x'")
    note = diagnosed(path, has_profile=False)["profile-broken"]
    assert note.message.endswith("could not be loaded: No module named 'x'")
    assert set(diagnosed()) == {"xprof-broken"}
    monkeypatch.setattr(environment, "_plugin", lambda name: None)
    assert set(diagnosed(has_profile=False)) == {"profile-missing"}


def test_driver_that_restricts_profiling_is_reported(
    diagnosed: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = tmp_path / "params"
    driver.write_text("RmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(environment, "_library_directories", lambda: [])
    monkeypatch.setattr(doctor, "recording_notes", lambda: environment.recording_notes(driver))
    assert {"profiling-restricted"} <= set(diagnosed(f"run/{SESSION}/host.xplane.pb"))
