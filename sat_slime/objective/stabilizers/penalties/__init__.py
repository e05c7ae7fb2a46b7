"""Smooth surrogates and penalties, in place of the clip."""
