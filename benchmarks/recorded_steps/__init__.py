"""Training loops whose true step time is known, recorded in different ways.

Each program runs in a process of its own, and measures the same steps without the profiler and
with it.
"""
