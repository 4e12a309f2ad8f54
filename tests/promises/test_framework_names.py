"""The script that lists the files and words of frameworks from their wheels."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from scripts import framework_names


def test_lists_the_modules_and_words_of_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "flax-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name in ("a", "b", "c"):
            file.writestr(f"flax/linen/{name}.py", "def broadcast_zorble(): ...\ndef quux(x): x(")
            file.writestr(f"flax/nnx/{name}.py", "class C:\n  async def flutter_zorble(self): ...")
        file.writestr("flax/linen/once.py", "def jdoe(): ...")
        file.writestr("flax/tests/linen_test.py", "def zorble(): ...")
        file.writestr("other/module.py", "")
    monkeypatch.setattr(framework_names, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "stdlib_module_names", {"threading"})  # parsing all takes seconds
    monkeypatch.setattr(sys, "argv", ["framework_names.py", str(wheel)])
    framework_names.main()
    files = (tmp_path / "framework_files.txt").read_text(encoding="utf-8").splitlines()
    assert "flax/linen: a b c once" in files
    assert "flax/nnx: a b c" in files
    assert not [row for row in files if row.startswith(("other", "flax/tests"))]
    assert ": threading" in files
    words = (tmp_path / "framework_words.txt").read_text(encoding="utf-8").split()
    assert {"flutter", "zorble", "getattr", "linen"} <= set(words)
    # A module that is not Python of this version has no functions; a single use is no vocabulary.
    assert not {"quux", "jdoe", "broadcast_zorble"} & set(words)
    assert "modules" in capsys.readouterr().out
