"""Makes a job of Ray out of the settings of a slime run, and follows it: command, flags, checks, job, log."""
