"""Writes findings as Text and Scalar summaries, for TensorBoard servers without plugins."""
