"""Offline replay: what every method would do to the batches of a dump."""
