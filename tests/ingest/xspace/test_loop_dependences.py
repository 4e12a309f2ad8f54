"""What a loop computes in each trip although it is known before the first one."""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.ingest.xspace.decode.messages import HloProto
from tb_perfadvisor.ingest.xspace.interpret.hlo.fused_operations import known_before_loop
from tests.support.hlo_programs import added


def body(*, token: bool = False) -> Any:
    """A trip gathers a row of a table, by the counter or by the word of the trip before."""
    computation = HloProto().hlo_module.computations.add(id=1, root_id=30)
    added(computation, 1, "parameter")
    for index in range(4):  # the counter, the state, the table and the indices
        added(computation, 2 + index, "get-tuple-element", 1, tuple_index=index)
    added(computation, 10, "copy", 2)
    added(computation, 11, "constant")
    added(computation, 12, "dynamic-slice", 5, 10)
    added(computation, 13, "gather", 4, 3 if token else 12)
    added(computation, 14, "fusion", 3, 13)
    added(computation, 15, "add", 10, 11)
    added(computation, 30, "tuple", 15, 14, 4, 5)
    return computation


def test_rows_that_the_counter_selects_are_known() -> None:
    known = known_before_loop(body())
    assert b"gather.13" in known
    assert b"dynamic-slice.12" in known
    assert b"fusion.14" not in known  # it needs the state of the trip before


def test_rows_that_the_trip_before_selects_are_not() -> None:
    assert b"gather.13" not in known_before_loop(body(token=True))


def test_an_element_that_a_trip_changes_is_not_known() -> None:
    computation = body()
    del computation.instructions[-1]
    added(computation, 30, "tuple", 15, 14, 13, 5)  # the table changes
    assert b"gather.13" not in known_before_loop(computation)


def test_a_damaged_body_tells_nothing() -> None:
    computation = body()
    computation.root_id = 99
    assert known_before_loop(computation) == frozenset()
    computation.root_id = 30
    del computation.instructions[-1]
    added(computation, 30, "tuple", 77)
    assert b"gather.13" not in known_before_loop(computation)
