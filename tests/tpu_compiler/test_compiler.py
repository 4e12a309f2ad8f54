"""The process that compiles: its answers, its time limit, and what happens without it.

`python` is a script that answers as the worker would, since most machines have no libtpu.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.tpu_compiler import (
    GENERATIONS,
    CompiledProgram,
    Operation,
    Refused,
    compile_for_tpu,
    compiler,
)

V5E = GENERATIONS["v5e"]
HLO = """\
HloModule m

ENTRY %main (x: f32[1024,1024]) -> f32[1024,1024] {
  %x = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  ROOT %add.1 = f32[1024,1024]{1,0:T(8,128)} add(%x, %x)
}
"""
VERSIONS = {"jax": "0.10.2", "libtpu": "0.0.52"}
COMPILED = {"hlo_text": HLO, "hlo_proto": "AAE=", "memory": {"argument": 4_194_304}}
SHAPES = [Operation("elementwise", (1024, size)) for size in (1024, 1000)]


def answering(folder: Path, *lines: object, then: str = "") -> Path:
    """An interpreter that answers with these lines and then runs some code."""
    script = folder / "python"
    text = "\n".join(json.dumps(line) for line in lines)
    script.write_text(
        f"#!{sys.executable}\nimport sys, time\nsys.stdin.read()\n"
        f"print({text!r}, flush=True)\n{then}\n"
    )
    script.chmod(0o755)
    return script


@pytest.mark.skipif(sys.platform == "win32", reason="runs a script")
class TestAnswers:
    def test_kernels_have_cycles(self, tmp_path: Path) -> None:
        python = answering(tmp_path, VERSIONS, COMPILED, {"error": "ValueError: no such shape"})
        program, refused = compile_for_tpu(V5E, SHAPES, python=python)
        assert isinstance(program, CompiledProgram)
        assert (program.libtpu, program.hlo_proto) == ("0.0.52", b"\x00\x01")
        # Two reads and a write of 4 MiB at 819 GB/s, on a clock of 197e12 / 131,072 Hz.
        assert program.cycles == pytest.approx(12 * 2**20 / 819e9 * 197e12 / 131_072)
        assert refused == Refused("ValueError: no such shape")

    def test_what_takes_too_long_is_refused(self, tmp_path: Path) -> None:
        python = answering(tmp_path, VERSIONS, COMPILED, then="time.sleep(60)")
        program, late = compile_for_tpu(V5E, SHAPES, python=python, time_limit_s=1)
        assert isinstance(program, CompiledProgram)
        assert late == Refused("not compiled within 1 s")

    def test_one_that_takes_too_long_does_not_hold_up_the_others(self, tmp_path: Path) -> None:
        # The process hangs on each second program it is asked for.
        then = "time.sleep(60)"
        python = answering(tmp_path, VERSIONS, COMPILED, then=then)
        shapes = [*SHAPES, Operation("elementwise", (8, 8))]
        answers = compile_for_tpu(V5E, shapes, python=python, patience_s=1)
        assert [type(answer) for answer in answers] == [CompiledProgram, Refused, CompiledProgram]
        assert answers[1] == Refused("took longer than 1 s")

    def test_a_program_that_ends_the_process_is_refused(self, tmp_path: Path) -> None:
        python = answering(tmp_path, VERSIONS, COMPILED)
        program, refused = compile_for_tpu(V5E, SHAPES, python=python)
        assert isinstance(program, CompiledProgram)
        assert refused == Refused("ended the compiler")

    def test_a_compiler_that_does_not_start(self, tmp_path: Path) -> None:
        python = answering(tmp_path, {"refused": "RuntimeError: no topology"})
        with pytest.raises(PerfAdvisorError, match="cannot be used: RuntimeError: no topology"):
            compile_for_tpu(V5E, SHAPES, python=python)

    def test_answers_of_this_environment_are_cached(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setattr(compiler, "tpu_compiler_versions", lambda: ("0.10.2", "0.0.52"))
        monkeypatch.setattr(sys, "executable", str(answering(tmp_path, VERSIONS, COMPILED)))
        (first,) = compile_for_tpu(V5E, SHAPES[:1])
        monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
        assert compile_for_tpu(V5E, SHAPES[:1]) == [first]
        monkeypatch.setattr(compiler, "tpu_compiler_versions", lambda: ("0.10.2", "0.0.53"))
        with pytest.raises(FileNotFoundError):  # another version is asked again
            compile_for_tpu(V5E, SHAPES[:1])


def test_without_libtpu_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "tpu_compiler_versions", lambda: None)
    with pytest.raises(UsageError, match=r"pip install 'jax\[tpu\]"):
        compile_for_tpu(V5E, SHAPES)
