"""The dumps that reports read: slime's own, and those of embedded runs."""
