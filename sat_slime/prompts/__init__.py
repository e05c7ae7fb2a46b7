"""Prompts with labels for slime: prepared from public data sets, and checked. docs/data.md.

sources   where a data set is: on this machine or on the hub
rows      its rows, whatever its columns are called
text      a problem without its instruction; whether two are the same; the instruction template
labels    labels that the verifier cannot read or does not reward
build     from sources to prompts, with an account of every row
overlap   problems of one set that another holds
check     what is wrong with a file
output    the folder, whole or not at all
"""


class PromptError(ValueError):
    """Something that was given cannot be used. The message is one line, with the remedy."""
