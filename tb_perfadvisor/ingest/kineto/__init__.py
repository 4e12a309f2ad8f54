"""The reader of PyTorch's traces (Kineto, Chrome trace JSON)."""
