"""Evaluation: graded responses to scores."""
