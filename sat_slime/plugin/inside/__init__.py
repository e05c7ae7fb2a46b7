"""What the plugin does inside slime's processes, beneath the functions that slime calls by their dotted paths."""
