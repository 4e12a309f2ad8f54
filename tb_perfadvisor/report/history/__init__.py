"""The recordings of one run over time: what each changed, and whether advice came true."""
