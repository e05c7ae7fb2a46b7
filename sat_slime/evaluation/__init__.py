"""Evaluation: graded responses to scores, and the questions that a server is asked."""
