"""Checks of the files that settings name besides the model."""
