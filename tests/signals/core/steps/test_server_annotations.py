"""What inference servers write into the annotations of their steps.

The names come from recorded traces, from the servers' own code, and from TraceLens's documentation
of AMD's ATOM.
"""

from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.steps.server_annotations import (
    ServerBatch,
    StepKind,
    parse_server_step,
    server_annotations,
)
from tb_perfadvisor.testing import TraceBuilder, draw, host, ms, run_of

PREFILL, MIXED, DECODE = StepKind.PREFILL, StepKind.MIXED, StepKind.DECODE


def batch(
    kind: StepKind,
    prefill: tuple[int | None, int | None],
    decode: tuple[int | None, int | None],
    **more: Any,
) -> ServerBatch:
    """Requests and tokens of both kinds."""
    return ServerBatch(
        kind=kind,
        prefill_requests=prefill[0],
        prefill_tokens=prefill[1],
        decode_requests=decode[0],
        decode_tokens=decode[1],
        **more,
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # vLLM
        ("execute_context_2(14721)_generation_0(0)", batch(PREFILL, (2, 14721), (0, 0))),
        ("execute_context_0(0)_generation_64(64)", batch(DECODE, (0, 0), (64, 64))),
        ("execute_context_2(6144)_generation_3(3)", batch(MIXED, (2, 6144), (3, 3))),
        # 32 requests of which each verifies three drafts.
        ("execute_context_0(0)_generation_32(128)", batch(DECODE, (0, 0), (32, 128))),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)"
            "_generation_37(sq37sk34489sqsq37sqsk34489)",
            batch(MIXED, (9, 8155), (37, 37), cached_tokens=34489),
        ),
        # SGLang
        ("step[DECODE bs=32]", batch(DECODE, (0, 0), (32, 32))),
        ("step[EXTEND bs=1 toks=107]", batch(PREFILL, (1, 107), (0, 0))),
        ("step[MIXED bs=2]", batch(MIXED, (None, None), (None, None))),
        ("step[TARGET_VERIFY bs=8]", batch(DECODE, (0, 0), (8, None))),
        (
            "step[DECODE bs=64 g_sqsq=64 g_sqsk=131072 g_sk=131072]",
            batch(DECODE, (0, 0), (64, 64), cached_tokens=131072),
        ),
        (
            "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1"
            " g_sqsk=12]",
            batch(MIXED, (1, 5), (1, 1), cached_tokens=12),
        ),
        (
            "step[MIXED bs=1 c=1 g=0 c_sq=5 g_sq=0 g_sk=0]",
            batch(PREFILL, (1, 5), (0, 0), cached_tokens=0),
        ),
        (
            "step[MIXED bs=1 c=0 g=1 c_sq=0 g_sq=1 g_sk=12]",
            batch(DECODE, (0, 0), (1, 1), cached_tokens=12),
        ),
        # TensorRT-LLM
        (
            "[Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs",
            batch(DECODE, (0, 0), (32, 32)),
        ),
        ("[Executor] _forward_step 7: 2 ctx reqs, 3 gen reqs", batch(MIXED, (2, None), (3, 3))),
        # ATOM
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", batch(PREFILL, (2, 14721), (0, 0))),
        (
            "decode[bs=117/128 tok=117 d=117]",
            batch(DECODE, (0, 0), (117, 117), captured_requests=128),
        ),
        ("decode[bs=128 tok=384 p=2 d=126]", batch(MIXED, (2, None), (126, None))),
        ("decode[bs=128 tok=384 p=1 d=127]", batch(MIXED, (1, None), (127, None))),
        ("decode[bs=2 tok=384 p=2 d=0]", batch(PREFILL, (2, None), (0, None))),
    ],
)
def test_what_a_name_says(name: str, expected: ServerBatch) -> None:
    assert parse_server_step(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "execute_context_0(0)_generation_0(0)",  # a rank that waits for the others
        "step[IDLE bs=0]",
        "step[DRAFT_EXTEND bs=8]",  # part of a speculative step
        "step[0]",
        "execute_diffusion_1_256x256",
        f"execute_context_1({'9' * 4000})_generation_0(0)",
        "aten::mm",
    ],
)
def test_other_names_mark_no_step(name: str) -> None:
    assert parse_server_step(name) is None


LEGEND = {
    "P": host("execute_context_1(512)_generation_3(3)"),
    "d": host("execute_context_0(0)_generation_4(4)"),
    "e": host("execute_context_0(0)_generation_3(3)"),
}


def test_the_annotations_are_the_steps_whatever_the_batch() -> None:
    trace = draw(
        """
        cell 1ms
        main   |ddd.PPP...eee.ddd|
        main   |o...o.....o...o..|
        gpu 7  |.KK..KKKK..KK..KK|
        """,
        legend=LEGEND,
    )
    steps = Signals(run_of(trace)).steps
    assert (steps.source, steps.is_inferred) == ("the server's annotations", False)
    assert steps.start_ns.tolist() == [0, ms(4), ms(10)]
    assert steps.end_ns.tolist() == [ms(4), ms(10), ms(14)]
    # What followed the last annotation is not known.
    assert [step.number for step in steps.excluded] == [3]


def test_two_annotations_are_no_steps() -> None:
    trace = draw("cell 1ms\nmain |ddd.eee|\nmain |o...o..|\ngpu 7 |.KK..KK|", legend=LEGEND)
    assert Signals(run_of(trace)).steps.source == "none"


def test_nested_annotations_and_those_of_other_threads_count_once() -> None:
    builder = TraceBuilder()
    builder.annotation(
        "execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk99sqsq4sqsk99)", 0, 9
    )
    builder.annotation("step[DECODE bs=4]", 2, 8)
    builder.annotation("step[DECODE bs=4]", 3, 5, thread="draft")
    found = server_annotations(builder.build())
    assert (len(found), found.cached_tokens.tolist()) == (1, [99])
