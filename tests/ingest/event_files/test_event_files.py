"""Event files: framing, scalars, runs."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.event_files import reader
from tb_perfadvisor.ingest.event_files.reader import ScalarReader, read_records
from tb_perfadvisor.ingest.event_files.run_scalars import read_run
from tb_perfadvisor.ingest.event_files.runs import RunsByPlace, event_runs
from tests.support.event_files import Value, event, framed, write_scalar


def test_scalars_of_every_writer_are_read() -> None:
    content = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_content=struct.pack("<f", 2))
    numbers = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[3.0])
    data = framed(
        bytes(event_pb2.Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString()),
        event(7, 1.5, Value(tag="simple", simple_value=0.0)),  # 0 is a number
        event(7, 1.5, Value(tag="content", tensor=content), Value(tag="numbers", tensor=numbers)),
        event(7, 1.5, Value(tag="several", tensor=tensor_pb2.TensorProto(float_val=[1.0, 2.0]))),
        event(7, 1.5, Value(tag="image", image=summary_pb2.Summary.Image(width=1))),
    )
    reader = ScalarReader()
    reader.read(io.BytesIO(data))
    found = reader.series()
    assert {tag: series.value.tolist() for tag, series in found.items()} == {
        "simple": [0.0],
        "content": [2.0],
        "numbers": [3.0],
    }
    assert found["simple"].step.tolist() == [7]
    assert found["simple"].unix_ns.tolist() == [1_500_000_000]


def test_file_that_grows_is_read_on() -> None:
    first = framed(event(1, 1.0, Value(tag="loss", simple_value=1.0)))
    second = framed(event(2, 2.0, Value(tag="loss", simple_value=0.5)))
    reader = ScalarReader()
    reader.read(io.BytesIO(first + second[:-6]))  # the second record is not finished
    assert reader.end == len(first)
    assert reader.series()["loss"].step.tolist() == [1]
    reader.read(io.BytesIO(first + second))
    assert reader.series()["loss"].step.tolist() == [1, 2]


def test_large_records_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(reader, "MAX_RECORD_BYTES", 40)
    data = framed(b"a" * 10, b"b" * 500, b"c" * 30, b"d" * 20)
    found = [record for block in read_records(io.BytesIO(data)) for record in block.records]
    assert found == [b"a" * 10, b"d" * 20]  # 30 bytes take 46 with their frame


@pytest.mark.parametrize("size", range(50))
def test_cut_or_damaged_files_end_early(size: int) -> None:
    data = framed(event(1, 1.0, Value(tag="loss", simple_value=1.0)), b"\xff" * 5)
    reader = ScalarReader()
    reader.read(io.BytesIO(data[:size]))
    reader.read(io.BytesIO(bytes([255]) * size))
    assert reader.end <= size


def test_event_without_a_time_is_left_out() -> None:
    reader = ScalarReader()
    loss = Value(tag="loss", simple_value=1.0)
    reader.read(io.BytesIO(framed(event(1, float("nan"), loss), event(2, 1e300, loss))))
    assert reader.series() == {}


def test_runs_are_directories_and_keras_parts_belong_together(tmp_path: Path) -> None:
    for directory in ("keras/train", "keras/validation", "torch", "torch/perf_advisor"):
        write_scalar(tmp_path / directory, "epoch_loss", {1: 1.0})
    keras, torch = event_runs(discover(tmp_path)).values()
    assert (keras.run, torch.run) == ("keras", "torch")
    assert set(read_run(keras).series) == {"train/epoch_loss", "validation/epoch_loss"}
    assert set(read_run(torch).series) == {"epoch_loss"}


@pytest.mark.parametrize(
    ("capture", "run"),
    [
        ("keras", "keras"),
        ("keras/train", "keras"),  # Keras profiles beside the scalars of training
        ("megatron/rank0", "megatron"),
        ("megatron", "megatron"),
        ("plain", None),
    ],
)
def test_capture_belongs_to_the_run_of_its_directory_or_above(
    tmp_path: Path, capture: str, run: str | None
) -> None:
    for directory in ("keras/train", "megatron", "other/below"):
        write_scalar(tmp_path / directory, "loss", {1: 1.0})
    found = RunsByPlace(event_runs(discover(tmp_path))).candidates(capture)
    assert (found.certain.run if found.certain else None) == run
    assert not found.by_time


@pytest.mark.parametrize(
    ("capture", "runs"),
    [
        # torchtitan: outputs/tb/TIME/events… and outputs/profile_traces/iteration_10/rank0_….
        ("titan/profile_traces/iteration_10", ["titan/tb/first", "titan/tb/second"]),
        ("trainer/profiler", ["trainer/runs/Nov22"]),
        ("trainer", ["trainer/runs/Nov22"]),  # a directory that holds the run
        ("profiles", ["titan/tb/first", "titan/tb/second", "trainer/runs/Nov22"]),
        (".", ["titan/tb/first", "titan/tb/second", "trainer/runs/Nov22"]),
        ("other", []),  # another run, which logged no scalars
        ("trainer/other/profiler", []),
        ("tracelens", []),  # named after nothing but itself
    ],
)
def test_runs_beside_a_directory_of_profiles_are_candidates(
    tmp_path: Path, capture: str, runs: list[str]
) -> None:
    for directory in ("titan/tb/first", "titan/tb/second", "trainer/runs/Nov22"):
        write_scalar(tmp_path / directory, "loss", {1: 1.0})
    found = RunsByPlace(event_runs(discover(tmp_path))).candidates(capture)
    assert [run.run for run in found.runs] == runs
    assert found.certain is None
