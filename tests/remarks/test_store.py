"""Notes on findings are kept in the user's data directory; the last one counts."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.remark import Remark
from tb_perfadvisor.remarks.store import FILE, known_remarks, run_digest, write_remark


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERFADVISOR_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_last_note_on_a_finding_counts() -> None:
    assert known_remarks() == {}
    write_remark("a", Remark("step-gap", text="first"))
    write_remark("b", Remark("step-gap", wont_fix=True))
    write_remark("a", Remark("input-stall", text="slow disk"))
    write_remark("a", Remark("step-gap", wont_fix=True, text="second"))
    assert known_remarks() == {
        "a": {
            "input-stall": Remark("input-stall", text="slow disk"),
            "step-gap": Remark("step-gap", wont_fix=True, text="second"),
        },
        "b": {"step-gap": Remark("step-gap", wont_fix=True)},
    }
    write_remark("b", Remark("step-gap"))
    assert known_remarks()["b"] == {}


def test_runs_differ_by_log_directory_and_name() -> None:
    digests = {run_digest("/logs", "a"), run_digest("/logs", "b"), run_digest("/logs/a", "")}
    assert len(digests) == 3
    assert run_digest("/logs\udcff", "a")  # a path that is not UTF-8


def test_file_holds_no_path_and_is_the_users(data: Path) -> None:
    write_remark(run_digest("/home/me/secret", "run"), Remark("step-gap", text="x"))
    file = data / FILE
    assert b"secret" not in file.read_bytes()
    if sys.platform != "win32":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_lines_that_are_cut_off_are_left_out(data: Path) -> None:
    write_remark("a", Remark("step-gap", text="kept"))
    with (data / FILE).open("ab") as stream:
        stream.write(b'{"written_unix_s":1,"of":"a","fin')
    assert known_remarks() == {"a": {"step-gap": Remark("step-gap", text="kept")}}


def test_directory_that_cannot_be_written_is_an_error(data: Path) -> None:
    data.write_text("a file")
    with pytest.raises(UsageError, match="cannot be written"):
        write_remark("a", Remark("step-gap", text="x"))
    assert known_remarks() == {}
