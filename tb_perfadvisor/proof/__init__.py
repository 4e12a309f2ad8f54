"""Proves changes: runs a copy of a program with and without them, interleaved, and compares."""
