"""The rollout engines, each of which owns one SGLang server."""
