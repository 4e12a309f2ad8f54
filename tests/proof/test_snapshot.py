"""Copies of programs: what they hold, and that the checkout stays as it is."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.proof import snapshot as module
from tb_perfadvisor.proof.snapshot import (
    PREFIX,
    path_in_copy,
    safe_environment,
    take_snapshot,
    working_space,
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    files = {
        "train.py": "print(1)",
        "package/model.py": "x = 1",
        "settings.yaml": "lr: 1",
        ".git/config": "[core]",
        ".venv/pyvenv.cfg": "home = /usr",
        ".venv/lib/torch.py": "",
        "__pycache__/train.pyc": "",
        "runs/events.out.tfevents.1.host": "earlier",
        "runs/host.1.pt.trace.json": "{}",
        "runs/model.pt": "weights",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with (root / "data.npy").open("wb") as data:
        data.truncate(20 << 20)
    return root


def listed(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): "link" if path.is_symlink() else path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_copies_code_and_links_data(checkout: Path) -> None:
    with working_space() as space:
        taken = take_snapshot(checkout / "package", space)
        assert (taken.checkout, taken.inside) == (checkout, "package")
        expected = {
            "train.py": "print(1)",
            "package/model.py": "x = 1",
            "settings.yaml": "lr: 1",
            # Weights are copied: a program may write to them.
            "runs/model.pt": "weights",
            "data.npy": "link",
        }
        assert listed(taken.directory) == expected
        taken.copy(space / "version")
        assert listed(space / "version") == expected
        # What a program writes to its copy stays there.
        (space / "version" / "runs" / "model.pt").write_text("new")
        (space / "version" / "train.py").write_text("new")
        assert taken.changed_data() == []
        os.utime(checkout / "data.npy", ns=(1, 1))
        assert taken.changed_data() == [str(checkout / "data.npy")]
    assert (checkout / "runs" / "model.pt").read_text() == "weights"
    assert (checkout / "train.py").read_text() == "print(1)"
    assert not space.exists()


def test_many_files_without_code_are_linked_as_one(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MANY_FILES", 10)
    for folder, suffix in (("images", ".png"), ("modules", ".py")):
        (checkout / folder).mkdir()
        for number in range(11):
            (checkout / folder / f"{number}{suffix}").touch()
    with working_space() as space:
        copy = take_snapshot(checkout, space).directory
        assert (copy / "images").is_symlink()
        assert not (copy / "modules").is_symlink()
        assert len([*(copy / "modules").iterdir()]) == 11


def test_weights_beyond_the_limit_are_left_out_and_named(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_COPIED_BYTES", 20)
    with working_space() as space:
        taken = take_snapshot(checkout, space)
        assert "train.py" in taken.left_out
        assert not (taken.directory / "train.py").exists()


def test_links_within_the_program_stay_within_the_copy(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (checkout / "package" / "same.py").symlink_to(checkout / "train.py")
    (checkout / "outside").symlink_to(tmp_path / "elsewhere")
    (checkout / "nothing").symlink_to("gone")
    with working_space() as space:
        copy = take_snapshot(checkout, space).directory
        assert (copy / "package" / "same.py").resolve() == (copy / "train.py").resolve()
        assert (copy / "outside").resolve() == tmp_path / "elsewhere"
        assert (copy / "nothing").readlink() == Path("gone")


def test_paths_of_code_lead_into_the_copy(checkout: Path, tmp_path: Path) -> None:
    with working_space() as space:
        taken, copy = take_snapshot(checkout, space), space / "run"
        assert path_in_copy(taken, copy, str(checkout / "train.py")) == str(copy / "train.py")
        for same in (
            str(checkout / "data.npy"),  # data stays where it is
            str(checkout / ".venv" / "lib"),
            str(tmp_path),
            "train.py",
            "--lr=1",
        ):
            assert path_in_copy(taken, copy, same) == same
        given = {"PYTHONPATH": f"{checkout / 'package'}{os.pathsep}lib", "HOME": str(checkout)}
        made = safe_environment(taken, copy, given)
        assert made == {
            "PYTHONPATH": f"{copy / 'package'}{os.pathsep}lib",
            "HOME": str(checkout),
        }


def test_a_full_disk_is_an_error_that_leaves_nothing(
    checkout: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: str) -> None:
        Path(target).touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", full)
    with (
        pytest.raises(PerfAdvisorError, match=r"No space left on device.*TMPDIR"),
        working_space() as space,
    ):
        take_snapshot(checkout, space)
    assert [*temporary.iterdir()] == []


def test_an_interrupt_leaves_nothing(checkout: Path, temporary: Path) -> None:
    def interrupted() -> None:
        with working_space() as space:
            folder = take_snapshot(checkout, space).directory / "package"
            folder.chmod(0o500)  # a program may do that
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [*temporary.iterdir()] == []


def test_the_next_trial_deletes_what_a_killed_one_left(temporary: Path) -> None:
    program = (
        "import os, tempfile, signal\n"
        f"tempfile.tempdir = {str(temporary)!r}\n"
        "from tb_perfadvisor.proof.snapshot import working_space\n"
        "with working_space():\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    (left,) = temporary.glob(f"{PREFIX}*")
    with working_space() as space:
        assert not left.exists()
        with working_space() as other:  # one that runs stays
            assert space.exists()
            assert other != space


def test_copies_lie_outside_of_the_program(temporary: Path) -> None:
    (temporary.parent / ".git").mkdir()
    with pytest.raises(UsageError, match="lies in the program"), working_space() as space:
        take_snapshot(temporary.parent, space)


def test_a_home_directory_is_no_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    with (
        pytest.raises(UsageError, match="not the directory of a program"),
        working_space() as space,
    ):
        take_snapshot(tmp_path, space)
