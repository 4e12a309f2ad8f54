"""What a program's collectives carry, by what is computed from it."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.devices import (
    Carried,
    carried,
    share_if_batch_is_split,
)
from tb_perfadvisor.testing.builder import run_of
from tests.support.program_values import MODULE, SLOW, drawn, program

X, W, PART = "bf16[4096,1024]{1,0}", "bf16[1024,1024]{1,0}", "bf16[1024,256]{1,0}"
DOT = f"%dot = {X} dot({X} %x, {W} %whole), lhs_contracting_dims={{1}}"


def signals_of(text: str) -> Signals:
    return Signals(run_of(drawn(SLOW, DOT, program(text, devices=4))))


GATHERED = f"""
    %x = {X} parameter(0)
    %w = {PART} parameter(1) // parts=4, aliased
    %whole = {W} all-gather({PART} %w)
    {DOT} // result
"""
REDUCED = f"""
    %x = {X} parameter(0)
    %w = {W} parameter(1) // aliased
    %g = {W} dot({X} %x, {X} %x), lhs_contracting_dims={{0}}
    %sum = {W} all-reduce({W} %g)
    %new = {W} subtract({W} %w, {W} %sum) // result
    %dot = {X} dot({X} %x, {W} %w), lhs_contracting_dims={{1}} // result
"""
BETWEEN_LAYERS = f"""
    %x = {X} parameter(0)
    %w = {PART} parameter(1) // parts=4, aliased
    %part = {X} dot({X} %x, {PART} %w), lhs_contracting_dims={{1}}
    %sum = {X} all-reduce({X} %part)
    %dot = {X} dot({X} %sum, {PART} %w), lhs_contracting_dims={{1}} // result
"""


@pytest.mark.parametrize(
    ("text", "name", "carries"),
    [
        (GATHERED, "whole", Carried.PARAMETERS),
        (REDUCED, "sum", Carried.GRADIENTS),
        (BETWEEN_LAYERS, "sum", Carried.ACTIVATIONS),
    ],
)
def test_what_is_computed_from_it_tells_what_it_carries(
    text: str, name: str, carries: Carried
) -> None:
    assert carried(signals_of(text)) == {(MODULE, name): carries}


def test_split_by_the_batch_devices_exchange_the_gradients() -> None:
    # An all-reduce sends twice: gradients of 4 x 1024 x 256, instead of 4096 x 1024 activations.
    assert share_if_batch_is_split(signals_of(BETWEEN_LAYERS)) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The batch is split already, or the weights are not, or nothing is trained.
        ("parameter(0)", "parameter(0) // parts=4"),
        ("parts=4, aliased", "aliased"),
        ("parts=4, aliased", "parts=4"),
    ],
)
def test_no_other_split_is_known_to_be_better(old: str, new: str) -> None:
    assert share_if_batch_is_split(signals_of(BETWEEN_LAYERS.replace(old, new))) is None
