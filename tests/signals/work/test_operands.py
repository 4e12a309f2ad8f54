from __future__ import annotations

import pytest

from tb_perfadvisor.signals.work.operator_work import Extent, operands_of

# Inputs as PyTorch records them, from TraceLens' recording of Qwen1.5 on an H100.
NORMED = "[[16,559,1024],[],[],[]]"


def test_a_mean_over_the_last_dimension_is_row_by_row() -> None:
    mean = operands_of("aten::mean", NORMED, "float;ScalarList;Scalar;", '["","[-1]","True",""]')
    assert mean is not None
    assert mean.reads == (Extent(16 * 559 * 1024, 4),)
    assert mean.writes == (Extent(16 * 559, 4),)
    assert not mean.complete
    assert mean.fusible


def test_a_sum_over_the_batch_is_complete_after_all_rows() -> None:
    bias = operands_of("aten::sum", "[[64,128],[]]", "float;ScalarList", '["","[0]"]')
    assert bias is not None
    assert bias.complete
    assert bias.writes == (Extent(128, 4),)


def test_concatenation_reads_the_members_of_its_list() -> None:
    cat = operands_of(
        "aten::cat", "[[[16,16,559,32],[16,16,559,32]],[]]", "TensorList;Scalar", '["","-1"]'
    )
    assert cat is not None
    assert [extent.elements for extent in cat.reads] == [16 * 16 * 559 * 32] * 2
    assert cat.writes == (Extent(16 * 16 * 559 * 64, 0),)


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "traffic_bytes"),
    [
        # A cast reads 2 and writes 4 bytes of each of 100 numbers.
        ("aten::copy_", "[[100],[100],[]]", "float;c10::BFloat16;Scalar", 600),
        # Broadcast: 100 and 10 numbers are read, 100 written.
        ("aten::mul", "[[10,10],[10]]", "float;float", 840),
        ("aten::add_", "[[100],[100],[]]", "float;float;Scalar", 1200),
        ("aten::eq", "[[100],[100]]", "float;float", 900),
        ("aten::fill_", "[[100],[]]", "float;Scalar", 400),
        # The gradient and the saved input are read, and the gradient is written.
        ("aten::gelu_backward", "[[100],[100],[]]", "float;float;", 1200),
        # 5 rows of 8 numbers are read and written, and 5 indices of 8 bytes read.
        ("aten::embedding", "[[100,8],[5]]", "float;long int", 2 * 160 + 40),
        ("aten::native_dropout", "[[100],[],[]]", "float;Scalar;Scalar", 900),
    ],
)
def test_bytes_of_one_operator(name: str, shapes: str, dtypes: str, traffic_bytes: int) -> None:
    found = operands_of(name, shapes, dtypes, "")
    assert found is not None
    assert (found.fusible, found.traffic_bytes) == (True, traffic_bytes)


def test_products_are_not_fused_and_write_their_result() -> None:
    mm = operands_of("aten::mm", "[[8,16],[16,4]]", "float;float", "")
    assert mm is not None
    assert (mm.fusible, mm.writes) == (False, (Extent(32, 4),))


@pytest.mark.parametrize("shapes", ["", "[", "[[-1]]", "[1,2]", '["a"]', "{}"])
def test_damaged_shapes_tell_nothing(shapes: str) -> None:
    assert operands_of("aten::mul", shapes, "float;float", "") is None
    assert operands_of("aten::cat", shapes, "TensorList", "") is None
