"""One page about a run of slime's own loss: what its trackers and dumps show, since when, and what to try."""
