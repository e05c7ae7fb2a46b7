"""Prompts with labels for slime: prepared from public data sets, and checked. docs/data.md.

sources   where a data set is: on this machine or on the hub
rows      its rows, of whatever columns
text      a problem without its instruction; when two are the same; the instruction template
labels    what the verifier cannot do with a label
build     from sources to prompts, with an account of every row
overlap   problems of one set that are in another
check     what is wrong with a file
output    the folder, whole or not at all
"""


class PromptError(ValueError):
    """What was given cannot be used. One line, with the remedy."""
