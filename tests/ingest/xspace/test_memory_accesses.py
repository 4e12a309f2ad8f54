from __future__ import annotations

import pytest

from tb_perfadvisor.ingest.xspace.interpret.hlo.fused_operations import device_memory_bytes


@pytest.mark.parametrize(
    ("breakdown", "size_bytes"),
    [
        # Recorded on a TPU v6e (XProf's tpu_inference_2): 5 x 1,024 x 1,024 x 256 x 4 B are written
        # by a broadcast, read and written by a fusion, and moved on the host by a start.
        ("0a0a08021001188080808014", 5368709120),
        ("0a0a080110011880808080140a0a08021001188080808014", 10737418240),
        ("", 0),
        # 300 bytes are read from the device's memory, and 7 written on the chip.
        ("0a070801100118ac020a06080210031807", 300),
        # Broken off, and a field of another type.
        ("0a0a0802100118808080", None),
        ("0a", None),
        ("0d00000000", None),
    ],
)
def test_only_the_memory_of_the_device_counts(breakdown: str, size_bytes: int | None) -> None:
    assert device_memory_bytes(bytes.fromhex(breakdown)) == size_bytes
