from __future__ import annotations

import pytest

from tb_perfadvisor.rules.evidence.instance import (
    MOST_CHARACTERS,
    instance_of,
    short_annotation,
    short_name,
)
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Table

COLUMNS = (Column("operator", "Operator"), Column("product", "Size"), Column("source", "Line"))


def table(*row: Cell, names_instance: bool = True) -> Table:
    return Table("", COLUMNS, (row,), names_instance=names_instance)


def test_the_first_row_names_what_a_finding_is_about() -> None:
    found = Finding("", evidence=(table("aten::mm", "(8, 4, 2)", "train.py:12 step"),))
    assert instance_of(found) == "aten::mm of (8, 4, 2) at train.py:12 step"
    assert instance_of(Finding("", evidence=(table("aten::mm", "", ""),))) == "aten::mm"


def test_what_the_rule_says_comes_first() -> None:
    evidence = (table("aten::mm", "", ""),)
    assert instance_of(Finding("", evidence=evidence, instance="3 of 4")) == "3 of 4"


def test_tables_of_other_things_name_nothing() -> None:
    other = table("in launch calls", "", "", names_instance=False)
    assert instance_of(Finding("", evidence=(other,))) == ""
    assert instance_of(Finding("", evidence=(table("(not recorded)", "", ""),))) == ""


def test_a_long_instance_leaves_out_the_line() -> None:
    row = ("x" * 40, "(1024, 1024, 1024)", "a/long/path/to/a/file.py:123 forward")
    text = instance_of(Finding("", evidence=(table(*row),)))
    assert text == f"{'x' * 40} of (1024, 1024, 1024)"
    assert len(text) <= MOST_CHARACTERS


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::mm", "aten::mm"),
        ("PjitFunction(<lambda>)", "PjitFunction(<lambda>)"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::Fill<float> >(int)",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("replica_6/bert/embeddings/GatherV2/Cast:Cast", "GatherV2/Cast"),
        ("random_uniform/RandomUniform:RandomUniform", "random_uniform/RandomUniform"),
        ("conv/BiasAdd:Add", "conv/BiasAdd:Add"),
        ("Iterator::Root::Prefetch::MapAndBatch", "MapAndBatch"),
        ("Iterator::Model::ParallelMapV2[0]", "ParallelMapV2"),
        ("$time sleep", "time.sleep"),
        ("$train.py:12 step", "train.py:12 step"),
        ("/tmp/cache/ov/model.py(2533): call", "ov/model.py:2533 call"),
        ("k" * 60, "k" * 47 + "…"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("## forward ##", "forward"),
        ("forward", "forward"),
        # From tracelens/inference_vllm_decode_full_capture.
        (
            "## Call CompiledFxGraph f4ii27ddivzklxr54hd45chngp247rp2ytmjxpq3f55wet4szuh7 ##",
            "Call CompiledFxGraph",
        ),
        ("Optimizer.step#AdamW.step", "Optimizer.step#AdamW.step"),
        ("####", "####"),
    ],
)
def test_short_annotations(name: str, short: str) -> None:
    assert short_annotation(name) == short
