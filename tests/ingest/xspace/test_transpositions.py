"""Copies between layouts, in programs written as libtpu 0.0.52 compiles them for a TPU v5e."""

from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.ingest.xspace.decode.messages import HloProto
from tb_perfadvisor.ingest.xspace.interpret.hlo.fused_operations import Transpositions
from tests.support.hlo_programs import added


def transposed(entry: Any, *others: Any) -> bool:
    """What is said of the copy `%copy.9` of a program."""
    computations = {int(computation.id): computation for computation in (entry, *others)}
    return Transpositions(entry, computations).explain("copy.9")


def computation(id_: int, root_id: int) -> Any:
    return HloProto().hlo_module.computations.add(id=id_, root_id=root_id)


def product_and_copy(*, dims: str, order: str, renamed: str, result: str) -> tuple[Any, Any]:
    """A fused product, renamed by a bitcast and rounded; a copy is the program's result."""
    inside = computation(2, 23)
    added(inside, 20, "parameter", shape="64,512,512")
    added(inside, 21, "convolution", 20, shape=f"{dims}{order}")
    added(inside, 22, "bitcast", 21, shape=renamed)
    added(inside, 23, "convert", 22, shape=renamed)
    entry = computation(1, 9)
    added(entry, 1, "parameter", shape="64,512,512")
    fusion = added(entry, 2, "fusion", 1, shape=renamed)
    fusion.called_computation_ids.append(2)
    added(entry, 9, "copy", 2, shape=result)
    return entry, inside


def test_a_result_whose_axes_are_swapped() -> None:
    # jnp.swapaxes of [64,512,1024] is a bitcast to [512,64,1024] in another order of memory.
    entry, inside = product_and_copy(
        dims="64,512,1024",
        order="{2,1,0}",
        renamed="512,64,1024{2,0,1}",
        result="512,64,1024{2,1,0}",
    )
    assert transposed(entry, inside)


@pytest.mark.parametrize(
    ("dims", "order", "renamed", "result"),
    [
        # The product itself is stored in another order: XLA chose it.
        ("8,1024,8,128", "{3,1,2,0}", "8,1024,8,128{3,1,2,0}", "8,1024,8,128{3,2,1,0}"),
        # Without the transposition, its order would still not be that of results.
        ("8,128,8,1024", "{3,1,2,0}", "8,8,1024,128{2,3,0,1}", "8,8,1024,128{3,2,1,0}"),
        # The copy only changes tiles; the bitcast splits a dimension.
        ("16,256", "{1,0}", "16,2,128{2,1,0}", "16,2,128{2,1,0}"),
    ],
)
def test_a_copy_that_xla_chose(dims: str, order: str, renamed: str, result: str) -> None:
    entry, inside = product_and_copy(dims=dims, order=order, renamed=renamed, result=result)
    assert not transposed(entry, inside)


def test_a_result_that_is_stacked_along_the_last_axis() -> None:
    # The loop returns [8,2048,512]; the program returns it as [2048,512,8] in a tuple.
    entry = computation(1, 12)
    added(entry, 1, "parameter")
    added(entry, 2, "while", 1)
    added(entry, 3, "get-tuple-element", 2, shape="8,2048,512", tuple_index=2)
    added(entry, 9, "copy", 3, shape="8,2048,512{2,0,1}")
    added(entry, 10, "copy-start", 9)
    added(entry, 11, "copy-done", 10, shape="8,2048,512{2,0,1}")
    bitcast = added(entry, 13, "bitcast", 11, shape="2048,512,8{1,2,0}")
    assert not transposed(entry)  # nothing returns it
    added(entry, 12, "tuple", 13)
    assert transposed(entry)
    bitcast.shape.ClearField("dimensions")
    bitcast.shape.dimensions.extend([7, 11])  # a damaged program
    assert not transposed(entry)


def test_an_argument_by_sample_and_time_of_which_a_loop_takes_the_time_first() -> None:
    entry = computation(1, 12)
    added(entry, 1, "parameter", shape="128,256,512")
    added(entry, 9, "copy", 1, shape="128,256,512{2,0,1}")
    added(entry, 10, "bitcast", 9, shape="32,8,128,512")
    added(entry, 11, "tuple", 10)
    added(entry, 12, "while", 11)
    assert transposed(entry)


def test_an_argument_that_a_fusion_reads_in_another_order() -> None:
    # Weights of a training program that XLA stores the other way round: nothing is transposed.
    inside = computation(2, 21)
    added(inside, 20, "parameter", shape="512,2048{0,1}")
    added(inside, 21, "subtract", 20, 20, shape="512,2048{0,1}")
    entry = computation(1, 10)
    added(entry, 1, "parameter", shape="512,2048")
    added(entry, 9, "copy", 1, shape="512,2048{0,1}")
    fusion = added(entry, 10, "fusion", 9, shape="512,2048{0,1}")
    fusion.called_computation_ids.append(2)
    assert not transposed(entry, inside)
    # The same with a transposition inside the fusion.
    added(inside, 22, "bitcast", 20, shape="2048,512")
    added(inside, 23, "convert", 22, shape="2048,512")
    assert transposed(entry, inside)


def test_an_element_of_a_fusion_with_several_results() -> None:
    inside = computation(2, 25)
    added(inside, 20, "parameter", shape="64,512")
    added(inside, 21, "reduce", 20, shape="64,512")
    added(inside, 22, "bitcast", 21, shape="512,64{0,1}")
    added(inside, 23, "broadcast", shape="512,64{0,1}")
    added(inside, 24, "multiply", 23, 22, shape="512,64{0,1}")
    added(inside, 25, "tuple", 20, 24)
    entry = computation(1, 9)
    added(entry, 1, "parameter", shape="64,512")
    added(entry, 2, "fusion", 1).called_computation_ids.append(2)
    added(entry, 3, "get-tuple-element", 2, shape="512,64{0,1}", tuple_index=1)
    added(entry, 9, "copy", 3, shape="512,64")
    assert transposed(entry, inside)


def test_endless_chains_and_missing_instructions_are_no_reason() -> None:
    entry = computation(1, 9)
    added(entry, 1, "bitcast", 2, shape="8,16")
    added(entry, 2, "bitcast", 1, shape="8,16")
    added(entry, 9, "copy", 1, shape="16,8")
    assert not transposed(entry)
    assert not transposed(computation(1, 9))


def test_a_conversion_of_itself_explains_nothing() -> None:
    entry = computation(1, 9)
    added(entry, 1, "convert", 1, shape="512,1024")
    added(entry, 2, "add", 1, shape="512,1024")
    added(entry, 9, "copy", 2, shape="512,1024")
    assert not transposed(entry)


def test_an_element_of_nothing_explains_nothing() -> None:
    entry = computation(1, 9)
    added(entry, 1, "get-tuple-element", shape="512,1024")
    added(entry, 9, "copy", 1, shape="512,1024")
    assert not transposed(entry)
