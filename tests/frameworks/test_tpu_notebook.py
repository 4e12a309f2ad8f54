"""The notebook for people who have a TPU: all that needs none is executed, with JAX on the CPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import analyze

NOTEBOOK = Path(__file__).parents[2] / "docs/examples/tpu_profile.ipynb"


def test_it_returns_an_anonymized_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jax")
    nbformat = pytest.importorskip("nbformat")
    execution = pytest.importorskip("nbconvert.preprocessors")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    skipped = [cell for cell in notebook.cells if "not-run" in cell.metadata.get("tags", ())]
    assert len(skipped) == 2
    notebook.cells = [cell for cell in notebook.cells if cell not in skipped]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    execute = execution.ExecutePreprocessor(timeout=300, kernel_name="python3")
    execute.preprocess(notebook, {"metadata": {"path": str(tmp_path)}})
    printed = [text for text in map(printed_by, notebook.cells) if text]
    assert any("This is no TPU" in text for text in printed)
    assert printed[-1].strip() == "True"
    copy = tmp_path / "tpu-profile.xplane.pb"
    report = analyze(copy)
    assert report.steps.used + len(report.steps.excluded) == 10
    assert b"loss_of" not in copy.read_bytes()


def test_each_code_cell_says_whether_it_was_run() -> None:
    nbformat = pytest.importorskip("nbformat")
    said = ""
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells[1:]:
        if cell.cell_type == "code":
            mark = (
                "*Not run.*" if "not-run" in cell.metadata.get("tags", ()) else "*Run by a test.*"
            )
            assert mark in said, cell.source
        elif cell.source.startswith("## "):
            said = cell.source


def printed_by(cell: Any) -> str:
    """What a cell printed; the kernel may send a line in several parts, and warnings apart."""
    outputs = (each for each in cell.get("outputs", ()) if each.output_type == "stream")
    return "".join(each.text for each in outputs if each.name == "stdout")
