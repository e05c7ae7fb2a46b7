"""What runs inside slime's processes, and carries the functions that slime calls by their dotted paths."""
