"""Everything that touches slime: what slime calls by its dotted path, and `driver`, which runs slime's classes in our
order."""
