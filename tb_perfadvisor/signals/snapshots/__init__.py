"""Facts about memory snapshots: what PyTorch's caching allocator did, and what it holds."""
