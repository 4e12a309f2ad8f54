"""Appends scalars to an event file of its own, as a run goes on."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


class ScalarWriter:
    """Writes an event file in a directory that nothing else uses."""

    def __init__(self, directory: Path) -> None:
        """Create the file.

        Raises:
            OSError: If it cannot be created.
        """
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self.path = directory / name
        self._file = self.path.open("wb")
        self._writer = RecordWriter(self._file)
        self._write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Append one point of each tag."""
        summary = summary_pb2.Summary(
            value=[
                summary_pb2.Summary.Value(tag=tag, simple_value=value)
                for tag, value in values.items()
            ]
        )
        self._write(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        """Write the rest."""
        self._file.close()

    def _write(self, event: event_pb2.Event) -> None:
        self._writer.write(event.SerializeToString())
        self._file.flush()
