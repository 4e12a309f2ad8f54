"""The TensorBoard plugin. Imports nothing, so that TensorBoard starts even if we are broken."""
