"""Also fires on a recording: TensorFlow 2.21, `TFRecordDataset(files).repeat().shuffle(512)`."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.input.tfdata import TfdataRepeatBeforeShuffle
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import iterator
from tb_perfadvisor.trace import Trace

DRAWING = """
    cell 1ms
    step   |....|....|
    main   |Do..|Do..|
    main   |S...|S...|
    main   |T...|T...|
    gpu 7  |.KKK|.KKK|
"""


def trace(upper: str, lower: str) -> Trace:
    legend = {
        "S": iterator(f"Root::{upper}", iterator=1),
        "T": iterator(f"Root::{upper}::{lower}", iterator=2, parent=1),
    }
    return draw(DRAWING, legend=legend, framework="tensorflow")


def test_names_the_repeat_below_the_shuffle() -> None:
    checked = check_rule(
        TfdataRepeatBeforeShuffle,
        slow=trace("Shuffle", "ForeverRepeat"),
        fixed=trace("ForeverRepeat", "Shuffle"),
    )
    assert "Root::Shuffle::ForeverRepeat" in checked.findings[0].summary
    assert checked.findings[0].severity == "low"


@pytest.mark.parametrize(
    ("upper", "lower"), [("ShuffleAndRepeat", "TFRecord"), ("Shuffle", "TFRecord")]
)
def test_other_orders_are_left_alone(upper: str, lower: str) -> None:
    assert find(TfdataRepeatBeforeShuffle, trace(upper, lower)) == ()
