"""Runs of slime: their plan, the checks of a machine or a cluster, the job that is sent and followed."""
