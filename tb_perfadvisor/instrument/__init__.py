"""One line in a training script, so that its profiles say more.

Each framework has a module of its own, which imports the framework when it is used, not before.
"""
