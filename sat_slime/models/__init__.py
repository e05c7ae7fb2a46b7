"""Model families, and their layers without Transformer Engine."""
