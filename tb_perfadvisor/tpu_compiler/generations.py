"""Generations of TPUs, as the compiler and the device table name them."""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.hardware import find_device
from tb_perfadvisor.hardware.lookup import DeviceSpec


class Generation(Struct, frozen=True):
    """A generation of TPUs."""

    name: str
    """What Google Cloud calls it: v5e."""
    topology: str
    """The smallest slice that the compiler knows."""
    device: str
    """A driver's name, under which the device table has it."""
    clock_hz: float
    """Cycles per second: the dense bf16 peak divided by the FLOP that the matrix units of a device
    finish in one cycle."""
    links: int
    """Links to neighbors, which share the bandwidth: four in a two-dimensional torus, six in a
    three-dimensional one."""
    cores: int = 1
    """Cores of a device that the compiler compiles for one by one. Without a TPU it takes each core
    of a v4 for a device, although programs use both as one."""

    @property
    def spec(self) -> DeviceSpec:
        """Its row in the device table."""
        spec = find_device(self.device)
        assert spec is not None
        return spec

    @property
    def flop_per_cycle(self) -> float:
        """FLOP of dense bf16 products per cycle, of what the compiler compiles for."""
        return self.spec.peaks.tensor["bf16"] / self.cores / self.clock_hz

    @property
    def link_bytes_per_cycle(self) -> float:
        """Bytes per cycle over one link, in one direction."""
        bandwidth = self.spec.link_bandwidth_bytes_per_s
        assert bandwidth is not None
        return bandwidth / self.links / self.clock_hz

    @property
    def hbm_bytes_per_cycle(self) -> float:
        """Bytes that the main memory delivers per cycle, to what the compiler compiles for."""
        bandwidth = self.spec.peaks.memory_bandwidth_bytes_per_s
        assert bandwidth is not None
        return bandwidth / self.cores / self.clock_hz


# Matrix units of a device, times 2 FLOP for each of their 128 x 128 (from v6e on 256 x 256) cells:
# 8 x 32,768 for v4 and v5p, 4 x 32,768 for v5e, and 4 x 131,072 for v6e and one core of TPU7x.
GENERATIONS = {
    generation.name: generation
    for generation in (
        Generation("v4", "v4:2x2x1", "TPU v4", 275e12 / (8 * 32_768), 6, cores=2),
        Generation("v5e", "v5e:2x2", "TPU v5e", 197e12 / (4 * 32_768), 4),
        Generation("v5p", "v5p:2x2x1", "TPU v5p", 459e12 / (8 * 32_768), 6),
        Generation("v6e", "v6e:2x2", "TPU v6e", 918e12 / (4 * 131_072), 4),
        Generation("tpu7x", "tpu7x:2x2x1", "TPU7x", 1153.5e12 / (4 * 131_072), 6),
    )
}


def find_generation(name: str) -> Generation:
    """A generation by its name, in any case."""
    try:
        return GENERATIONS[name.casefold()]
    except KeyError:
        known = ", ".join(GENERATIONS)
        raise UsageError(
            f"there is no TPU generation called {name!r}.", hint=f"Known: {known}."
        ) from None
