"""The rollout engine: an actor that owns one SGLang server."""
