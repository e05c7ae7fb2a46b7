"""Prompts with labels for slime: prepared from public data sets. docs/data.md.

locations where a data set is: on this machine, or on the hub
set_rows  its rows, whatever its columns are called
odd       prompts, labels and files that are not what they seem to be
text      a problem without its instruction; whether two are the same; the instruction template
labels    labels that the verifier cannot read or does not reward
build     makes prompts of data sets, with an account of every row
overlap   problems of one set that another holds
tokenizer a chat template
output    the folder, which is there whole or not at all, and how it was made
"""


class PromptError(ValueError):
    """Something that was given cannot be used. The message is one line, with the remedy."""
