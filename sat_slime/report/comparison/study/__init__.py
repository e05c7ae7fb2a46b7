"""The report of a study: grids in one folder that vary one of them, paired by seed."""
