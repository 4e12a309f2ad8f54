"""Records a few steps now and then for as long as a program trains.

`instrument.torch.continuous`, `instrument.jax.continuous`, `instrument.keras.continuous`,
`instrument.lightning.continuous` and `instrument.transformers.continuous` are the ways in.
"""
