"""What program this is: which parts it has, and which advice fits it."""
