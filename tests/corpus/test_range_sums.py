"""Sums of ranges of real recordings are those of the analysis."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.signals import Signals
from tests.support.range_sums import check_against_the_analysis


@pytest.mark.parametrize(
    "name",
    [
        "hta/critical_path_alexnet",
        "hta/df_index_resolver/07019a1e",
        "local-torch2.13-cpu/conv_dl0_slow_rich",
        "tracelens/inference_sglang_decode",
        "tracelens/mi300",
    ],
)
def test_sums_are_those_of_the_analysis(corpus: Path, name: str) -> None:
    run = load(corpus / name)[0]
    check_against_the_analysis(Signals(run))
