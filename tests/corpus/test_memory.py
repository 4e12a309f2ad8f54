"""What is alive at the peak of recorded profiles, against the totals that the allocator wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tb_perfadvisor.api import load
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.memory_use import MemoryCategory, memory_categories, memory_use


@pytest.mark.parametrize(
    "path",
    [
        "hta/df_index_resolver/07019a1e",
        "tracelens/h100/google_owlv2-large-patch14-ensemble",
        "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat",
        "local-torch2.13-cpu/vit_patchdropout_gather",
        "tracelens-jax/jax08_attention",
    ],
)
def test_pairs_of_addresses_agree_with_the_totals(corpus: Path, path: str) -> None:
    (run,) = load(corpus / path)
    signals = Signals(run)
    use = memory_use(signals)
    assert use is not None
    assert use.allocations is not None
    table = run.traces[0].memory
    on_device = table.device == (-1 if use.device is None else use.device)
    change, address = table.bytes[on_device], table.address[on_device]
    # Independent of the pairing: what the first total leaves over, less what is freed and was
    # never seen to be allocated, is what was there before the recording.
    held = int(use.allocated_bytes[0] - change[0])
    live: set[int] = set()
    for row in range(use.peak + 1):
        if change[row] > 0:
            live.add(int(address[row]))
        elif int(address[row]) in live:
            live.remove(int(address[row]))
        else:
            held += int(change[row])
    # Recordings on the CPU state no totals, so what was there before is unknown.
    assert use.preexisting_bytes(use.peak) == (held if use.has_totals else None)
    alive = use.alive_at(int(use.at_ns[use.peak]))
    assert alive is not None
    assert len(alive) == len(live)
    assert np.all(alive.row >= 0) or run.traces[0].source.framework != "pytorch"


def test_what_a_data_parallel_training_holds_at_its_peak(corpus: Path) -> None:
    """Added up from the file: allocated under operators before and in the backward pass."""
    (run,) = load(corpus / "hta/df_index_resolver/07019a1e")
    signals = Signals(run)
    found = memory_categories(signals)
    assert found is not None
    # Gradients are kept from step to step, so they are from before the recording.
    assert found.at_peak == {
        MemoryCategory.ACTIVATIONS: 1_333_781_504,
        MemoryCategory.TEMPORARY: 1_199_112_192,
        MemoryCategory.EARLIER: 4_096_614_400,
    }
    # The allocator's own total.
    assert sum(found.at_peak.values()) == 6_629_508_096
