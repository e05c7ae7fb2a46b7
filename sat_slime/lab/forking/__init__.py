"""Imports paid once: servers that have imported what a run needs, and fork its processes on demand."""
