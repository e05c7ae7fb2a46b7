"""Prompts with labels for slime: prepared from public data sets. docs/reward.md.

sets     where a data set is, and its rows, whatever its columns are called
text     a problem without its instruction, two copies of a problem, the instruction template, and what is odd
prepare  makes prompts of data sets, with an account of every row
"""


class PromptError(ValueError):
    """Something that was given cannot be used. The message is one line, with the remedy."""
