from __future__ import annotations

from pathlib import Path

from tests.support.command import SLOW, error, run


def test_writes_a_copy(tmp_path: Path) -> None:
    (source,) = SLOW.glob("*.json.gz")
    copy = tmp_path / "copy.pt.trace.json.gz"
    done = run("anonymize", source, copy)
    assert copy.exists()
    assert "wrote" in done.stderr
    # PyTorch writes `fwdbwd`, a category of arrows, but has no such name in its Python code.
    assert "in no framework's vocabulary: fwdbwd" in " ".join(done.stderr.split())


def test_refuses_with_one_line(tmp_path: Path) -> None:
    (source,) = SLOW.glob("*.json.gz")
    assert "would be lost" in error("anonymize", source, source)
    assert "No such file" in error("anonymize", tmp_path / "none.json", tmp_path / "copy.json")
