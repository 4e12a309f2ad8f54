"""How long layers take on the CPU in 32 bits, under autocast in bfloat16, and with channels last.

    python -m cost_models.layer_forms 1

It prints a line for each layer and size: its forward and backward pass in 32 bits, in bfloat16, and
the ratio of both. Products run under autocast; other layers get the type that products give them.
The constants of `signals/work/layer_forms.py` follow from it. It runs for two minutes with each
number of threads that is given; with more than one, keep the machine idle meanwhile. With
`ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16` in the environment, a machine with AMX does without it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tb_perfadvisor.machine.this_machine import this_machine

_SECONDS = 0.35
_LINEAR = (
    *((8, 16, 16), (32, 64, 64), (64, 128, 128), (100, 784, 500), (128, 784, 400), (64, 256, 256)),
    *((16, 512, 512), (256, 512, 512), (1024, 256, 1024), (512, 1024, 1024), (2048, 768, 768)),
    *((8, 1024, 4096), (20, 2048, 2048), (4096, 64, 64), (16384, 32, 32), (640, 650, 10000)),
)
"""Rows, inputs, outputs."""
_CONVOLUTIONS = (
    *((100, 1, 28, 16, 5), (100, 16, 14, 32, 5), (32, 3, 32, 16, 3), (100, 16, 32, 16, 3)),
    *((100, 64, 8, 64, 3), (16, 64, 56, 64, 3), (8, 3, 224, 64, 7), (16, 128, 28, 128, 3)),
    *((16, 256, 14, 256, 1), (64, 6, 14, 16, 5), (4, 512, 7, 512, 3)),
)
"""Images, channels, height and width, filters, size of a filter."""
_RECURRENT = ((100, 28, 28, 128), (64, 28, 28, 64), (20, 30, 128, 1024), (32, 50, 256, 256))
"""Sequences, places, inputs, hidden units."""
_IMAGES = ((100, 16, 28, 28), (32, 64, 28, 28), (16, 64, 112, 112))


def _pass_ms(passes: Sequence[Callable[[], Any]]) -> list[float]:
    """The median processor time of some forward and backward passes, run in turns.

    A busy machine slows all of them down alike.
    """
    times: list[list[float]] = [[] for _ in passes]
    end = time.perf_counter() + len(passes) * _SECONDS
    while time.perf_counter() < end or len(times[0]) < 6:
        for of_pass, run in zip(times, passes, strict=True):
            start = time.process_time()
            run()
            of_pass.append(time.process_time() - start)
    return [float(np.median(of_pass[2:])) * 1e3 for of_pass in times]


def _under_autocast(
    layer: Callable[..., Any], inputs: torch.Tensor, *, is_narrow: bool
) -> Callable[[], None]:
    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
            result = layer(inputs)
        result = result[0] if isinstance(result, tuple) else result
        result.float().sum().backward()

    return run


def _other_layers() -> Iterator[tuple[str, torch.nn.Module, torch.Tensor]]:
    """Layers that autocast leaves alone."""
    for shape in _IMAGES:
        for last in (False, True):
            order = torch.channels_last if last else torch.contiguous_format
            inputs = torch.randn(shape).to(memory_format=order)
            for layer in (torch.nn.ReLU(), torch.nn.BatchNorm2d(shape[1]), torch.nn.MaxPool2d(2),
                          torch.nn.Tanh()):  # fmt: skip
                yield f"{layer} {shape}{' last' if last else ''}", layer, inputs


def _cases() -> Iterator[tuple[str, Callable[..., Any], torch.Tensor, float]]:
    """Name, layer, inputs, and FLOP of the forward and backward pass."""
    for rows, taken, given in _LINEAR:
        inputs = torch.randn(rows, taken, requires_grad=True)
        name = f"linear {rows}x{taken}x{given}"
        yield name, torch.nn.Linear(taken, given), inputs, 6.0 * rows * taken * given
    for count, channels, side, filters, size in _CONVOLUTIONS:
        plain = torch.randn(count, channels, side, side, requires_grad=True)
        name = f"conv {count}x{channels}x{side} {filters}x{size}"
        flop = 6.0 * count * side * side * channels * filters * size * size
        layer = torch.nn.Conv2d(channels, filters, size, padding=size // 2)
        yield name, layer, plain, flop
        last = plain.detach().to(memory_format=torch.channels_last).requires_grad_()
        yield f"{name} last", layer.to(memory_format=torch.channels_last), last, flop
    for kind, gates in ((torch.nn.LSTM, 4), (torch.nn.GRU, 3), (torch.nn.RNN, 1)):
        for count, places, taken, units in _RECURRENT:
            inputs = torch.randn(count, places, taken, requires_grad=True)
            flop = 6.0 * gates * count * places * units * (taken + units)
            name = f"{kind.__name__.lower()} {count}x{places}x{taken} {units}"
            yield name, kind(taken, units, batch_first=True), inputs, flop


def main() -> None:
    """Print the time of each layer in both."""
    for threads in [int(word) for word in sys.argv[1:]] or [torch.get_num_threads()]:
        torch.set_num_threads(threads)
        machine = this_machine()
        print(f"PyTorch {torch.__version__}, {threads} threads, {machine.processor}")
        print(" ".join(machine.instruction_sets or ()))
        for name, layer, inputs, flop in _cases():
            wide_ms, narrow_ms = _pass_ms(
                [_under_autocast(layer, inputs, is_narrow=narrow) for narrow in (False, True)]
            )
            rates = f"{flop / wide_ms / 1e6:.1f} and {flop / narrow_ms / 1e6:.1f} GFLOP/s"
            print(
                f"{name}: {wide_ms:.3f} ms, {narrow_ms:.3f} ms, {narrow_ms / wide_ms:.2f}, {rates}",
                flush=True,
            )
        for name, module, images in _other_layers():
            kinds = [images.to(kind).requires_grad_() for kind in (torch.float32, torch.bfloat16)]
            wide_ms, narrow_ms = _pass_ms(
                [_under_autocast(module, each, is_narrow=False) for each in kinds]
            )
            print(
                f"{name}: {wide_ms:.3f} ms, {narrow_ms:.3f} ms, {narrow_ms / wide_ms:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
