from __future__ import annotations

import gzip
from pathlib import Path
from typing import NoReturn

import pytest

from tb_perfadvisor.instrument import trace_files
from tb_perfadvisor.instrument.trace_files import write_trace

TRACE = b'{"traceEvents": [\n' + b'{"ph": "X", "name": "aten::mm"},\n' * 100_000 + b"]}"


class Profiler:
    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_bytes(TRACE)


def test_a_trace_is_named_as_pytorch_names_it(tmp_path: Path) -> None:
    write_trace(Profiler(), tmp_path / "new" / "run", "rank0")
    (path,) = tmp_path.rglob("*.*")
    assert path.parent == tmp_path / "new" / "run"
    worker, number, rest = path.name.split(".", 2)
    assert (worker, rest) == ("rank0", "pt.trace.json.gz")
    assert number.isdigit()
    assert gzip.decompress(path.read_bytes()) == TRACE


def test_nothing_is_left_of_what_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: gzip.GzipFile, length: int) -> NoReturn:
        target.write(b"{")
        assert not [*tmp_path.glob("*.gz")]  # of a program that is killed now, nothing is read
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace_files.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        write_trace(Profiler(), tmp_path, "rank0")
    assert list(tmp_path.iterdir()) == []
