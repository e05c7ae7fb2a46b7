"""A dress rehearsal of a run of slime: its own file, whole, on CPU cores, with widths and counts made thin.

`thin` derives the settings that run here from the user's, and lists what they change; `material` makes the model, the
words and the prompts; `rehearsal_checks` holds what the run recorded against what the settings ask for.
"""
