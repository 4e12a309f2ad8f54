"""Our message classes together with TensorFlow's, if it is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"
)
# Runs beside TensorFlow's own classes: both pools in one process, and the same counts from both.
_CHECK = """
import io
import sys
from tensorflow.tsl.profiler.protobuf import xplane_pb2
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.ingest.xspace.decode.messages import FileReader
from tb_perfadvisor.ingest.xspace.decode.space import outline, read_plane
from tb_perfadvisor.ingest.xspace.decode.space import read_space
from tb_perfadvisor.trace import Source
data = open(sys.argv[1], "rb").read()
theirs = xplane_pb2.XSpace.FromString(data)
file = FileReader(io.BytesIO(data), where="")
planes = read_space(file, where="").planes
ours = [read_plane(file, outline(file, begin, end)) for begin, end in planes]
read_xplane(io.BytesIO(data), Source(path="", format=""))
assert [p.name for p in theirs.planes] == [p.name for p in ours]
for their_plane, our_plane in zip(theirs.planes, ours):
    assert len(their_plane.lines) == len(our_plane.lines)
    for their_line, our_line in zip(their_plane.lines, our_plane.lines):
        expected = [
            (
                their_plane.event_metadata[event.metadata_id].name,
                their_line.timestamp_ns + event.offset_ps // 1000,
            )
            for event in their_line.events
        ]
        names = [our_line.names[row] for row in our_line.row]
        assert list(zip(names, our_line.start_ns.tolist())) == expected
print("events", sum(len(line.events) for plane in theirs.planes for line in plane.lines))
"""


def as_tensorflow_reads(path: Path) -> int:
    """The number of events in a file, if both classes agree about its content."""
    done = subprocess.run(
        [sys.executable, "-c", _CHECK, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.split()[-1])
