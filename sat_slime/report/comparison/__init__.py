"""The report of several runs."""
