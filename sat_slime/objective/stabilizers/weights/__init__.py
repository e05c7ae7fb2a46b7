"""Weights: they multiply the surrogate of each token by a number."""
