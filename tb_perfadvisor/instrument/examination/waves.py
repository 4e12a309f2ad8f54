"""Recognizes matrices of sines and cosines, with which a product computes a spectrum."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SHORTEST: Final = 64
"""Products with shorter waves are faster than a Fourier transform."""
_FEWEST_WAVES: Final = 16
_MOST_ELEMENTS: Final = 1 << 25
_SAMPLED: Final = 12
_NEAR: Final = 2
"""The main lobe of a windowed wave reaches over so many frequencies to each side."""
_IN_PEAK: Final = 0.85
"""The part of a wave's energy near its frequency. A wave between two frequencies, as in a cosine
transform, leaves less than a tenth further away."""
_LEAST_SPACING: Final = 0.3
"""Cosine transforms have waves half a frequency apart."""


def wave_lengths(tensor: Any) -> tuple[int, ...]:
    """The lengths of the waves that the columns or rows of a matrix, or kernels, consist of.

    Args:
        tensor: A product's input, or a convolution's.
    """
    if tensor.dim() == 3 and (tensor.shape[0] == 1 or tensor.stride(0) == 0):
        tensor = tensor[0]
    shape = tuple(tensor.shape)
    if len(shape) > 2 and 1 in shape[1:-1] and shape[1:-1].count(1) == len(shape) - 2:
        tensor, shape = tensor.reshape(shape[0], shape[-1]), (shape[0], shape[-1])
    is_number = tensor.is_floating_point() or tensor.is_complex()
    if len(shape) != 2 or not is_number or tensor.numel() > _MOST_ELEMENTS:
        return ()
    found = []
    for matrix in (tensor, tensor.t()):
        length, count = matrix.shape
        if length < _SHORTEST or count < _FEWEST_WAVES:
            continue
        # Beyond half the sampling rate, frequencies of real waves fall again.
        chosen = np.unique(np.linspace(0, (count - 1) // 2, _SAMPLED).astype(np.int64))
        waves = matrix[:, chosen.tolist()].cdouble() if matrix.is_complex() else matrix[:, chosen]
        if _are_spaced(np.asarray(waves.cpu().numpy()), chosen):
            found.append(int(length))
    return tuple(found)


def _are_spaced(waves: NDArray[Any], numbers: NDArray[np.int64]) -> bool:
    """Whether each column has one frequency, in proportion to its number."""
    waves = waves.astype(np.complex128 if np.iscomplexobj(waves) else np.float64)
    energy = np.abs(np.fft.fft(waves, axis=0)) ** 2
    length = len(energy)
    if not np.iscomplexobj(waves):
        energy = energy[: length // 2 + 1]
    total = energy.sum(axis=0)
    if not np.isfinite(total).all():
        return False
    is_wave = total > 1e-9 * total.max(initial=0.0)
    if is_wave.sum() < _SAMPLED // 2:
        return False
    energy, total, numbers = energy[:, is_wave], total[is_wave], numbers[is_wave]
    peaks = energy.argmax(axis=0)
    rows = np.arange(len(energy))[:, None]
    near = np.where(np.abs(rows - peaks) <= _NEAR, energy, 0.0).sum(axis=0)
    if (near < _IN_PEAK * total).any():
        return False
    spacing = (peaks[-1] - peaks[0]) / (numbers[-1] - numbers[0])
    expected = peaks[0] + spacing * (numbers - numbers[0])
    return abs(spacing) >= _LEAST_SPACING and bool((np.abs(peaks - expected) <= _NEAR).all())
