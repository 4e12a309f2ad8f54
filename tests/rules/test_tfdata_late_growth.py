"""Also fires on a recording: TensorFlow 2.21, a shuffle of 512 images of 256 x 256 x 3 floats
behind the map that decodes them from TFRecords: 384 MiB."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.input.tfdata import TfdataLateGrowth
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import iterator

SLOW = """
    cell 1ms
    step   |....|....|
    main   |Do..|Do..|
    main   |S...|S...|
    main   |M...|M...|
    main   |T...|T...|
    gpu 7  |.KKK|.KKK|
"""
IMAGE = {"shapes": "[256,256,3]", "types": "float"}


def legend(shuffle: str, map_: str, source: str, elements: int = 512) -> dict[str, object]:
    """Chains of a buffer, a map and a source; iterators above the map yield images."""

    def is_mapped(chain: str) -> bool:
        return not chain.startswith(map_ + "::") if map_ != source else True

    return {
        letter: iterator(
            f"Root::{chain}",
            iterator=number,
            buffer_size=elements if chain.endswith("Shuffle") else -1,
            **(IMAGE if is_mapped(chain) else {"shapes": "[]", "types": "string"}),
        )
        for number, (letter, chain) in enumerate(
            (("S", shuffle), ("M", map_), ("T", source)), start=1
        )
    }


LATE = legend("Shuffle", "Shuffle::ParallelMapV2", "Shuffle::ParallelMapV2::TFRecord")
EARLY = legend("ParallelMapV2::Shuffle", "ParallelMapV2", "ParallelMapV2::Shuffle::TFRecord")


def test_a_buffer_of_decoded_images() -> None:
    from tb_perfadvisor.testing import draw

    checked = check_rule(
        TfdataLateGrowth,
        slow=draw(SLOW, legend=LATE, framework="tensorflow"),
        fixed=draw(SLOW, legend=EARLY, framework="tensorflow"),
    )
    # 512 x 256 x 256 x 3 x 4 bytes = 402,653,184.
    assert "384 MiB of host memory" in checked.findings[0].summary
    assert checked.findings[0].severity == "low"


@pytest.mark.parametrize(("elements", "count"), [(325, 0), (326, 1)])
def test_small_buffers_are_left_alone(elements: int, count: int) -> None:
    # 326 images of 786,432 bytes are just above 256 MB.
    symbols = legend(
        "Shuffle", "Shuffle::ParallelMapV2", "Shuffle::ParallelMapV2::TFRecord", elements
    )
    findings = find(TfdataLateGrowth, SLOW, legend=symbols, framework="tensorflow")
    assert len(findings or ()) == count


@pytest.mark.parametrize(("shapes", "count"), [("[256,256,3]", 1), ("[256,257,3]", 0)])
def test_growth_below_the_limit_is_left_alone(shapes: str, count: int) -> None:
    # Bytes grow by a factor of four when cast to floats; slightly larger inputs grow by less.
    symbols = LATE | {
        "T": iterator(
            "Root::Shuffle::ParallelMapV2::TensorSlice", iterator=3, shapes=shapes, types="uint8"
        )
    }
    findings = find(TfdataLateGrowth, SLOW, legend=symbols, framework="tensorflow")
    assert len(findings or ()) == count
