"""Logs that torch.compile writes to the directory `TORCH_TRACE`, the input of tlparse."""
