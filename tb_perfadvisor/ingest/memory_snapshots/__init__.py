"""Reads the memory snapshots of PyTorch's caching allocator."""
