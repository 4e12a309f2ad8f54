"""Output works whatever the encoding of the terminal: Windows has cp1252, some containers ASCII."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tb_perfadvisor.cli import main
from tests.support.command import HEALTHY, SLOW, run


def output(encoding: str, *arguments: object, status: int = 0) -> tuple[bytes, bytes]:
    """What a command writes to stdout and stderr of an encoding."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2)]
    with (
        patch.object(sys, "stdout", streams[0]),
        patch.object(sys, "stderr", streams[1]),
        patch.object(sys, "argv", ["perfadvisor", *map(str, arguments)]),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert ended.value.code == status
    out, err = (stream.buffer for stream in streams)
    assert isinstance(out, io.BytesIO)
    assert isinstance(err, io.BytesIO)
    return out.getvalue(), err.getvalue()


@pytest.fixture(params=["ascii", "cp1252", "utf-8"])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("format", ["text", "markdown"])
def test_text_says_the_same(encoding: str, format: str) -> None:
    text = output(encoding, "analyze", SLOW, "-f", format)[0].decode(encoding)
    assert "saves 36.6 ms per step" in text
    assert "\\u" not in text  # each of our characters has a look-alike
    if encoding == "ascii" and format == "text":
        assert "-> Load batches in worker processes" in text


@pytest.mark.parametrize("format", ["json", "sarif"])
def test_json_is_the_same_document(encoding: str, format: str) -> None:
    written = output(encoding, "analyze", SLOW, "-f", format)[0]
    assert json.loads(written.decode(encoding)) == json.loads(
        run("analyze", SLOW, "-f", format).stdout
    )


def test_the_page_is_the_same_file(encoding: str) -> None:
    written = output(encoding, "analyze", SLOW, "-f", "html")[0].decode("utf-8")
    assert written.replace("\r\n", "\n") == run("analyze", SLOW, "-f", "html").stdout


def test_comparisons_and_rules(encoding: str) -> None:
    compared = output(encoding, "compare", SLOW, HEALTHY)[0]
    assert b"pytorch_input_fixed" in compared
    assert b"\\u" not in compared
    assert output(encoding, "rules")[0]
    assert output(encoding, "explain", "input-stall")[0]
    assert output(encoding, "doctor", SLOW)[0]


def test_errors(encoding: str, tmp_path: Path) -> None:
    _, written = output(encoding, "analyze", tmp_path / "名", status=2)
    assert b"there is no such file or directory." in written
