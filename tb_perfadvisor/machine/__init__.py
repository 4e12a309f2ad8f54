"""What machine this is, and what runs on it: read by recorders, stored beside captures."""
