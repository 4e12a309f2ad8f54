"""Measures whether TensorBoard stays quick while captures are analyzed.

    python benchmarks/load.py                      # 5 rounds of 1,000 requests, 20 in flight
    python benchmarks/load.py --rounds 9 --captures 40

Prints Markdown. In each round, the same requests go to a TensorBoard without our plugin, to one
with it that is idle, and to one that analyzes captures while a tab shows them. Other work on the
machine slows all three, so the ratios of a round are compared, and not its times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.request import urlopen

from processes import ROOT
from served import WITH_PLUGINS, serving

MOST_RATIO = 2.0
_DEMO = ROOT / "demo_logs" / "pytorch_ddp_straggler"
_REQUEST = "/data/environment"
_API = "/data/plugin/perf_advisor/api/v1"
_WARM_UP = 100
_LOOK_EVERY_S = 1.0
"""As often as the tab asks."""
_BARE = (str(ROOT / "benchmarks" / "programs" / "bare_tensorboard.py"),)


@dataclass(frozen=True, slots=True)
class Times:
    """Response times of one burst of requests."""

    median_ms: float
    slow_ms: float
    """The 99th percentile."""
    analyzed: int = 0
    """How many captures were analyzed meanwhile."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round measured."""

    bare: Times
    idle: Times
    loaded: Times


def main() -> None:
    """Measure what the command line asks for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=20)
    parser.add_argument("--captures", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfadvisor-load-") as made:
        logs = Path(made) / "logs"
        for number in range(given.captures):
            shutil.copytree(_DEMO, logs / f"run_{number}")
        rounds = [
            _round(logs, Path(made) / f"cache_{number}", given) for number in range(given.rounds)
        ]
    print("\n".join(_page(rounds)))


def _round(logs: Path, cache: Path, given: argparse.Namespace) -> Round:
    found = []
    for command, is_loaded in ((_BARE, False), (WITH_PLUGINS, False), (WITH_PLUGINS, True)):
        with serving(logs, cache / str(is_loaded), _answers, command) as address:
            found.append(asyncio.run(_measure(address, given, is_loaded=is_loaded)))
    return Round(*found)


def _answers(address: str) -> bool:
    with urlopen(address + _REQUEST, timeout=60) as answer:
        return bool(answer.status == 200)


async def _measure(address: str, given: argparse.Namespace, *, is_loaded: bool) -> Times:
    server = Server(address)
    await server.burst(_WARM_UP, given.in_flight)
    if not is_loaded:
        return await server.burst(given.requests, given.in_flight)
    async with server.analyzing() as analyzed:
        times = await server.burst(given.requests, given.in_flight)
        states = [state for state in await analyzed() if state != "done"]
        if not states:
            sys.exit("all captures were analyzed before the last request: use more --captures")
        return Times(times.median_ms, times.slow_ms, given.captures - len(states))


class Server:
    """A TensorBoard, asked over HTTP."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.removeprefix("http://").partition(":")
        self._port = int(port)

    async def get(self, path: str) -> bytes:
        """The body of an answer."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {self._host}:{self._port}\r\n\r\n".encode())
            answer = await reader.read()
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        if head.split()[1] not in (b"200", b"202"):
            sys.exit(f"{path}: {head.decode().splitlines()[0]}")
        return body

    async def burst(self, requests: int, in_flight: int) -> Times:
        """Ask many times, some at once."""
        waiting, times_ms = iter(range(requests)), []

        async def ask() -> None:
            for _ in waiting:
                began = perf_counter()
                await self.get(_REQUEST)
                times_ms.append(1e3 * (perf_counter() - began))

        await asyncio.gather(*(ask() for _ in range(in_flight)))
        return Times(median(times_ms), sorted(times_ms)[int(0.99 * len(times_ms))])

    @asynccontextmanager
    async def analyzing(self) -> AsyncIterator[Callable[[], Awaitable[list[str]]]]:
        """Analyze all captures as the table of runs does, and look at them from time to time."""
        ids: list[str] = []
        while not ids:  # the first scan may not have finished
            listed = json.loads(await self.get(f"{_API}/captures"))
            ids = [capture["id"] for capture in listed["captures"]]

        async def look() -> list[str]:
            rows = [json.loads(await self.get(f"{_API}/captures/{id_}/row")) for id_ in ids]
            return [row["status"] for row in rows]

        async def keep_looking() -> None:
            while True:
                await look()
                await asyncio.sleep(_LOOK_EVERY_S)

        await look()
        looking = asyncio.create_task(keep_looking())
        try:
            yield look
        finally:
            looking.cancel()


def _page(rounds: Sequence[Round]) -> Iterator[str]:
    yield "| | without the plugin | idle | analyzing | ratio |"
    yield "|---|---|---|---|---|"
    for name, figure in (("median", "median_ms"), ("99th percentile", "slow_ms")):
        bare, idle, loaded = (
            [getattr(getattr(each, kind), figure) for each in rounds]
            for kind in ("bare", "idle", "loaded")
        )
        ratios = [after / before for before, after in zip(bare, loaded, strict=True)]
        ratio = median(ratios)
        yield (
            f"| {name} | {median(bare):.0f} ms | {median(idle):.0f} ms | {median(loaded):.0f} ms |"
            f" {'✓' if ratio <= MOST_RATIO else '✗'} {ratio:.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    yield ""
    analyzed = median(each.loaded.analyzed for each in rounds)
    yield f"{analyzed:.0f} captures were analyzed while the requests were answered."


if __name__ == "__main__":
    main()
