"""Exports of Nsight Systems: `nsys export --type sqlite`."""
