"""Stabilizers with a clip interval: PPO's, SAT's, and those of another kind."""
