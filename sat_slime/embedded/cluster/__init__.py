"""Ray, which belongs to one run, and the actors on it: the trainer's ranks and the rollout engines."""
