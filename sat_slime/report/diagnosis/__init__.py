"""The mismatch taken apart."""
