"""The directory that `perfadvisor run` puts in front of the program's search path."""
