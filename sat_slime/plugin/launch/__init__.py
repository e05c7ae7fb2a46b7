"""From the settings of a slime run to a job of Ray, and back to it: command, flags, checks, job, log."""
