"""What every surface shares: the types of all that is sent or stored. Needs no NumPy."""
