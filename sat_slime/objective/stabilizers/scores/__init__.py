"""Score forms: w A log pi with a detached weight w, in place of the clip."""
