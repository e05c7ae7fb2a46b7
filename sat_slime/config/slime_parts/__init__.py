"""Checks of a slime run by subject: how it is cut over GPUs, what it generates, flags that fail later."""
