"""Gates: they keep or drop tokens or whole responses."""
