"""Evaluations: what is asked of whom, and what came of it."""
