"""What the addresses below `api/v1/` answer: one module for each thing that is asked for."""
