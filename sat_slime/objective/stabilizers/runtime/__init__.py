"""What happens around the surrogate, where the runtime works: forward pass, denominator, optimizer step."""
