"""Prompts with labels for slime: prepared from public data sets. docs/reward.md."""
