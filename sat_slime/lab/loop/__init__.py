"""The order of a run: what both modes of the pipeline share, and each of the two."""
