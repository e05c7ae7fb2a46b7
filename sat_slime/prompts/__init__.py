"""Prompts with labels for slime: prepared from public data sets. docs/reward.md.

sets     where a data set is, and its rows, whatever its columns are called
odd      prompts, labels and files that are not what they seem to be
text     a problem without its instruction, two copies of a problem, the instruction template
prepare  makes prompts of data sets, with an account of every row
"""


class PromptError(ValueError):
    """Something that was given cannot be used. The message is one line, with the remedy."""
