"""Prompts with labels for slime: prepared from public data sets. docs/reward.md.

text     a problem without its instruction, two copies of a problem, the instruction template, and what is odd
prepare  makes prompts of data sets, whatever their columns are called, with an account of every row
"""
