"""This package runs inside slime's processes, and the functions that slime calls by their dotted paths stand on it."""
