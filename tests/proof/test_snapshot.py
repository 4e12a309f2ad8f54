"""Copies of programs: what they hold, and that the checkout stays as it is."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
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


@pytest.mark.parametrize("place", ["images", ".venv/lib"])
def test_a_directory_that_is_not_copied_is_no_program(
    place: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the program would run in the checkout, or patches would change it."""
    monkeypatch.setattr(module, "_MANY_FILES", 3)
    (checkout / "images").mkdir()
    for number in range(4):
        (checkout / "images" / f"{number}.png").touch()
    with working_space() as space:
        taken = take_snapshot(checkout, space)
        assert taken.has_copied(checkout)
        assert taken.has_copied(checkout / "package")
        assert not taken.has_copied(checkout / place)
        assert not taken.has_copied(checkout.parent)
    with (
        pytest.raises(UsageError, match="not the directory of a program"),
        working_space() as space,
    ):
        take_snapshot(checkout / place, space)


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


def test_links_to_the_program_itself_lead_to_the_copy(checkout: Path) -> None:
    (checkout / "package" / "top").symlink_to(checkout)
    (checkout / "loop").symlink_to("loop")
    with working_space() as space:
        copy = take_snapshot(checkout, space).directory
        assert (copy / "package" / "top").readlink() == Path("..")
        assert (copy / "package" / "top" / "train.py").resolve() == copy / "train.py"
        assert (copy / "loop").readlink() == Path("loop")


def test_links_to_what_is_left_out_lead_to_the_original(checkout: Path) -> None:
    # So git-annex keeps large files.
    stored = checkout / ".git" / "annex" / "objects" / "images.tar"
    stored.parent.mkdir(parents=True)
    stored.write_text("images")
    (checkout / "package" / "images.tar").symlink_to("../.git/annex/objects/images.tar")
    with working_space() as space:
        taken = take_snapshot(checkout, space)
        link = taken.directory / "package" / "images.tar"
        assert (link.read_text(), link.resolve()) == ("images", stored)
        stored.write_text("others")
        os.utime(stored, ns=(1, 1))
        assert taken.changed_data() == [str(checkout / "package" / "images.tar")]


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("folder", ["", "package"])
def test_a_git_directory_elsewhere_is_not_taken_along(
    folder: str, is_link: bool, checkout: Path, tmp_path: Path
) -> None:
    """Otherwise git, in the copy, changes the repository of the user."""
    shutil.rmtree(checkout / ".git")
    elsewhere = tmp_path / "elsewhere.git"
    elsewhere.mkdir()
    place = checkout / folder / ".git"
    if is_link:
        place.symlink_to(elsewhere)
    else:  # a worktree, or a submodule
        place.write_text(f"gitdir: {elsewhere}\n")
    with working_space() as space:
        taken = take_snapshot(checkout, space)
        assert taken.checkout == checkout
        assert (taken.directory / "train.py").is_file()
        assert [*taken.directory.rglob(".git")] == []


def test_hard_links_become_files_of_the_copy(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("mine")
    os.link(tmp_path / "shared.py", checkout / "shared.py")
    with working_space() as space:
        copied = take_snapshot(checkout, space).directory / "shared.py"
        assert (copied.read_text(), copied.stat().st_nlink) == ("mine", 1)
        copied.write_text("of the copy")
    assert (tmp_path / "shared.py").read_text() == "mine"


def test_what_is_no_file_is_not_read(checkout: Path) -> None:
    os.mkfifo(checkout / "pipe")
    (checkout / "package" / "pipe.py").symlink_to(checkout / "pipe")
    (checkout / "random").symlink_to("/dev/urandom")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(checkout / "socket"))
    with suppress(PermissionError):  # only some users may make one
        os.mknod(checkout / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    with working_space() as space:
        taken = take_snapshot(checkout, space)
        taken.copy(space / "version")
        for copy in (taken.directory, space / "version"):
            found = {path.name for path in copy.iterdir()}
            assert not found & {"pipe", "socket", "device"}
            assert (copy / "random").resolve() == Path("/dev/urandom")


def test_names_of_any_kind_are_copied(checkout: Path) -> None:
    names = ["two\nlines.py", "-rf", "$(touch x).py", os.fsdecode(b"\xff.py"), "\u202egpj.py"]
    for name in names:
        (checkout / name).write_text("x = 1")
    with working_space() as space:
        copy = take_snapshot(checkout, space).directory
        assert {path.name for path in copy.iterdir()} >= {*names}


def test_files_that_vanish_meanwhile_are_not_missed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training in the checkout writes checkpoints under names of its own, and renames them."""
    (checkout / "model.pt.partial").write_text("half")
    (checkout / "stage").mkdir()
    copy = shutil.copy2

    def copied(source: Path, target: Path) -> None:
        if source.name == "model.pt.partial":
            source.unlink()
            (checkout / "stage").rmdir()
        copy(source, target)

    monkeypatch.setattr(shutil, "copy2", copied)
    with working_space() as space:
        found = listed(take_snapshot(checkout, space).directory)
    assert "train.py" in found
    assert "model.pt.partial" not in found


def test_a_file_that_cannot_be_read_is_named(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(source))

    monkeypatch.setattr(shutil, "copy2", refused)
    with pytest.raises(PerfAdvisorError) as caught, working_space() as space:
        take_snapshot(checkout, space)
    assert caught.value.where == str(checkout / "package" / "model.py")
    assert "Permission denied" in str(caught.value)
    assert "TMPDIR" not in str(caught.value)


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
        given |= {"GIT_DIR": str(checkout / ".git"), "GIT_WORK_TREE": str(checkout)}
        given |= {"GIT_INDEX_FILE": ".git/index"}
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
