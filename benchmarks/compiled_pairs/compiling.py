"""Compiles pairs for TPUs and writes their profiles: `python -m compiled_pairs.compiling`."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from compiled_pairs.catalog import GENERATIONS, PAIRS, generations_of, pair_named
from compiled_pairs.pair import CompiledPair
from demo_logs.record.compiled import write_compiled
from demo_logs.record.compiled.profile import step_ps
from demo_logs.record.compiled_tpu import generation_named, schedule_of
from tb_perfadvisor.tpu_compiler import CompiledProgram, Source, compile_for_tpu
from tb_perfadvisor.tpu_compiler.kernels import kernels_of
from tb_perfadvisor.tpu_compiler.optimized_hlo import parse_module

ROLES = ("slow", "fixed")
_SESSION = "2026_01_01_00_00_00"
_TIME_LIMIT_S = 1800
_AT_ONCE = 8
"""Programs of one process. A program takes the compiler seconds to minutes."""
_EIGHT_CHIPS = {"v5e": "v5e:2x4", "v5p": "v5p:2x2x2", "v6e": "v6e:2x4", "tpu7x": "tpu7x:2x2x1"}
"""Slices of eight devices: both cores of a TPU7x are devices of their own."""
_FACTS, _PROGRAM = "step.json", "program.json.gz"
_SOURCE = """
import sys
sys.path.insert(0, {folder!r})
import jax

# Profiles name files, but no directories of this machine.
jax.config.update("jax_hlo_source_file_canonicalization_regex", r".*/")
from compiled_pairs.building import build

def program(devices):
    return build({name!r}, {role!r}, devices)
"""


def main() -> None:
    """Compile what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--python", type=Path, required=True, help="with jax and libtpu")
    parser.add_argument("--only", action="append", metavar="TEXT", help="only pairs named so")
    parser.add_argument("--time-limit", type=int, default=_TIME_LIMIT_S, metavar="S")
    parser.add_argument("--patience", type=int, default=_TIME_LIMIT_S, metavar="S")
    parser.add_argument("--at-once", type=int, default=_AT_ONCE, metavar="N")
    parser.add_argument("--generation", choices=_EIGHT_CHIPS, action="append")
    parser.add_argument(
        "--rounds",
        type=int,
        default=len(GENERATIONS),
        choices=range(1, len(GENERATIONS) + 1),
        help="for how many generations each pair is compiled",
    )
    parser.add_argument("--rewrite", action="store_true", help="only write the profiles again")
    given = parser.parse_args()
    if given.rewrite:
        for path in given.directory.glob(f"*/*/*/{_PROGRAM}"):
            stored = gzip.decompress(path.read_bytes())
            program = msgspec.json.decode(stored, type=CompiledProgram)
            # How kernels are timed may have changed since.
            bundles = {k.name: k.bundle_cycles for k in program.kernels if k.bundle_cycles}
            made_for = generation_named(program.generation)
            kernels = kernels_of(parse_module(program.hlo_text), bundles, made_for)
            program = msgspec.structs.replace(program, kernels=kernels)
            write(path.parent, pair_named(path.parts[-3]), path.parts[-4], program)
        return
    pairs = [pair for pair in PAIRS if any(text in pair.name for text in given.only or [""])]
    refused = 0
    for number in range(given.rounds):
        for generation in given.generation or _EIGHT_CHIPS:
            missing = [
                (pair, role)
                for pair in pairs
                if generations_of(pair)[number : number + 1] == (generation,)
                for role in roles_of(pair)
                if not (folder_of(given.directory, pair, generation) / role / _FACTS).exists()
            ]
            for is_large in (False, True):
                programs = [(pair, role) for pair, role in missing if (pair.chips > 4) == is_large]
                for begin in range(0, len(programs), given.at_once):
                    part = programs[begin : begin + given.at_once]
                    refused += compile_part(given, generation, part)
    sys.exit(refused)


def roles_of(pair: CompiledPair) -> tuple[str, ...]:
    """The programs of a pair; a healthy program has no slow one."""
    return ROLES[1:] if pair.kind == "healthy" else ROLES


def folder_of(directory: Path, pair: CompiledPair, generation: str) -> Path:
    """Where the profiles of a pair lie."""
    return directory / generation / pair.name


def compile_part(
    given: argparse.Namespace, generation: str, part: Sequence[tuple[CompiledPair, str]]
) -> int:
    """Compile programs for slices of one size in one process; returns how many were refused."""
    scripts = str(Path(__file__).resolve().parents[1])
    answers = compile_for_tpu(
        generation_named(generation),
        [Source(_SOURCE.format(folder=scripts, name=p.name, role=role)) for p, role in part],
        time_limit_s=given.time_limit,
        patience_s=given.patience,
        python=given.python,
        topology=_EIGHT_CHIPS[generation] if part[0][0].chips > 4 else "",
    )
    refused = 0
    for (pair, role), answer in zip(part, answers, strict=True):
        if isinstance(answer, CompiledProgram):
            folder = folder_of(given.directory, pair, generation) / role
            write(folder, pair, generation, answer)
        else:
            refused += 1
            print(f"{pair.name}, {role}, {generation}: {answer.reason}", file=sys.stderr)
    return refused


def write(path: Path, pair: CompiledPair, generation: str, program: CompiledProgram) -> None:
    """Write a program's profile, its text, and how long a step takes."""
    schedule = schedule_of(program, generation_named(generation), pair.chips)
    session = path / "plugins" / "profile" / _SESSION
    session.mkdir(parents=True, exist_ok=True)
    (session / "host0.xplane.pb").write_bytes(write_compiled(schedule))
    (path / _PROGRAM).write_bytes(gzip.compress(msgspec.json.encode(program)))
    facts = {"step_ns": step_ps(schedule) / 1000, "compiler": schedule.compiler}
    (path / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
