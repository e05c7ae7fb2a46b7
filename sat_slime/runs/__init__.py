"""A run on disk: its folder, its rows, its log and its lock."""
