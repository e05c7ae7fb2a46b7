"""Everything that touches slime: the loss that it calls, hooks into it, and the launcher of its runs.

slime takes these functions by their dotted paths; docs/slime.md lists them.
"""
