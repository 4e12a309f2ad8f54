"""What the tab says of the log directory, the Profile tab and the machine around it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tb_perfadvisor import environment
from tb_perfadvisor.plugin import doctor
from tb_perfadvisor.plugin.catalog import Catalog
from tb_perfadvisor.plugin.naming import Root
from tb_perfadvisor.trace import Note
from tests.support.waiting import eventually

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"
SESSION = "plugins/profile/2026_01_02_03_04_05"
Diagnose = Callable[..., dict[str, Note]]


@pytest.fixture
def diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Diagnose:
    """The notes by their ids; a log directory is made of an xplane at each of the places."""
    # This machine's driver and libraries are another test's subject.
    monkeypatch.setattr(doctor, "recording_notes", list)
    monkeypatch.setattr(environment, "_import_problem", lambda module: "")
    monkeypatch.setattr(environment, "_plugin", lambda name: "some.module")

    def diagnose(*places: str, has_profile: bool = True) -> dict[str, Note]:
        (source,) = (DEMO_LOGS / "jax_healthy").rglob("*.xplane.pb")
        for place in places:
            target = tmp_path / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
        catalog = Catalog((Root(str(tmp_path), ""),))
        catalog.refresh(wait_s=10)
        eventually(lambda: not catalog.is_scanning)
        surroundings = doctor.Surroundings(str(tmp_path), catalog.roots, has_profile)
        notes = doctor.diagnose(catalog.snapshot, surroundings)
        found = {note.id: note for note in notes}
        assert len(found) == len(notes)
        assert all(str(tmp_path) not in note.message + note.remedy for note in notes)
        return found

    return diagnose


def test_nothing_is_wrong_with_a_good_session(diagnosed: Diagnose) -> None:
    assert diagnosed(f"run/{SESSION}/host.xplane.pb") == {}


def test_the_command_shows_the_profile_tab_what_it_did_not_see(
    diagnosed: Diagnose, tmp_path: Path
) -> None:
    place = "my run/host.xplane.pb"
    diagnosed(place)
    os.utime(tmp_path / place, (86_400, 86_400))
    note = diagnosed()["profile-tab-layout"]
    assert place in note.message
    before, command, after = note.remedy.split("`")
    assert (before, after) == ("In the log directory: ", "")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "my run/plugins/profile/1970_01_02_00_00_00/host.xplane.pb").is_file()
    assert diagnosed() == {}


def test_an_xplane_that_was_cut_off(diagnosed: Diagnose, tmp_path: Path) -> None:
    place = f"run/{SESSION}/host.xplane.pb"
    diagnosed(place)
    whole = (tmp_path / place).read_bytes()
    (tmp_path / place).write_bytes(whole[:-100])
    (note,) = diagnosed().values()
    assert (note.id, note.severity) == ("xplane-broken", "error")
    assert note.message == (
        f"`{place}` is broken: it stops in the middle. Copy it again from where it was written."
    )


def test_a_session_that_the_profile_tab_has_given_up(diagnosed: Diagnose, tmp_path: Path) -> None:
    place = f"run/{SESSION}/host.xplane.pb"
    kept = tmp_path / f"run/{SESSION}/.cached_tools.json"
    diagnosed(place)
    kept.write_text(json.dumps({"version": 1, "files": {}, "tools": ["overview_page"]}))
    assert diagnosed() == {}
    kept.write_text("{")
    assert diagnosed() == {}
    kept.write_text(json.dumps({"version": 1, "files": {}, "tools": []}))
    note = diagnosed()["profile-tab-remembers"]
    command = note.remedy.split("`")[1]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert diagnosed() == {}


def test_a_profile_tab_that_is_not_there(
    diagnosed: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"run/{SESSION}/host.xplane.pb"
    monkeypatch.setattr(environment, "_import_problem", lambda module: "No module named 'x'")
    note = diagnosed(place, has_profile=False)["profile-broken"]
    assert note.message.endswith("could not be loaded: No module named 'x'")
    assert set(diagnosed()) == {"xprof-broken"}
    monkeypatch.setattr(environment, "_plugin", lambda name: None)
    assert set(diagnosed(has_profile=False)) == {"profile-missing"}


def test_what_keeps_kernels_out_of_profiles(
    diagnosed: Diagnose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = tmp_path / "params"
    driver.write_text("RmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(environment, "_library_directories", lambda: [])
    monkeypatch.setattr(doctor, "recording_notes", lambda: environment.recording_notes(driver))
    assert {"profiling-restricted"} <= set(diagnosed(f"run/{SESSION}/host.xplane.pb"))
