from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from tb_perfadvisor.ingest.xspace.decode.messages import WRITING
from tests.support.tensorflow_classes import as_tensorflow_reads, needs_tensorflow
from tests.support.xspaces import Drawing


def test_nothing_is_registered_in_the_default_pool() -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName("tb_perfadvisor/xplane.proto")


def test_an_offset_of_zero_and_a_count_exclude_each_other_on_the_wire_only() -> None:
    assert WRITING.XEvent(offset_ps=0).SerializeToString() == b""


@pytest.mark.frameworks
@needs_tensorflow
def test_agrees_with_tensorflows_own_classes(tmp_path: Path) -> None:
    drawing = Drawing()
    plane = drawing.plane("/host:CPU")
    line = drawing.line(plane, "python", at_ns=1000)
    for index in range(50):
        drawing.event(plane, line, f"op{index % 7}", index * 10.5, 4.25, step_num=index)
    path = tmp_path / "t.xplane.pb"
    path.write_bytes(drawing.bytes())
    assert as_tensorflow_reads(path) == 50
