"""Reads what slime's trackers and its log hold of a run, as rows by our names."""
