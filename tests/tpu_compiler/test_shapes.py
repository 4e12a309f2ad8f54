"""Shapes as users write them."""

from __future__ import annotations

import pytest

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.tpu_compiler import Operation
from tb_perfadvisor.tpu_compiler.estimates import parse_operations, size_names


def test_alternatives_give_one_operation_each() -> None:
    assert parse_operations("8192x4096x128,130") == [
        Operation("product", (8192, 4096, 128)),
        Operation("product", (8192, 4096, 130)),
    ]
    assert len(parse_operations("product:8,16x4096x128,130,256")) == 6


def test_kind_and_data_type() -> None:
    assert parse_operations("elementwise:130x130@f32") == [
        Operation("elementwise", (130, 130), "float32")
    ]
    assert size_names("attention") == ("batch", "heads", "length", "size")
    assert size_names("elementwise") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("product:8192", "3 sizes"),
        ("attention:4x16x512", "batch, heads, length, size"),
        ("matmul:8x8x8", "no operation called 'matmul'"),
        ("product:8x8x0", "no positive numbers"),
        ("product:8x8x8@int3", "no data type"),
        ("product", "is no shape"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_operations(text)
