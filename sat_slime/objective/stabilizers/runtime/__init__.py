"""Stabilizers that work around the surrogate, where the runtime works: forward pass, denominator, optimizer step."""
