"""What slime has for a method and what it lacks, before a run and inside it."""

from __future__ import annotations

from sat_slime.objective import Method


def not_on_slime(method: Method) -> str | None:
    """Why slime cannot run a method that the embedded runtime can; None where it can."""
    if method.step_constraint:
        return (
            f"{method.name}: TRPO's constraint compares distributions over the whole vocabulary before and after an "
            "optimizer step, and takes the step back where it breaks; slime's engines return the sampled token's "
            "log-prob alone, and its step cannot be taken back: choose base dppo, which judges the sampled token, or "
            "the embedded runtime"
        )
    if "heads" in method.needs:
        return (
            f"{method.name}: it reads the engine's likeliest tokens of every state, for which slime asks its engines "
            "only under its own --use-score-centering, and that refuses every loss but its own (v0.3.1 and 624b824a8 "
            "lack the flag too): run slime's own without this plugin's loss, or the embedded runtime"
        )
    if method.step_scale:
        return (
            f"{method.name}: {method.step_scale.row.title} scales the learning rate of each optimizer step, and slime "
            f"takes that from its schedule alone: leave {method.step_scale.name} out, or choose the embedded runtime"
        )
    return None


def needs_versions(method: Method) -> str | None:
    """What a method needs that travels to slime's trainer with the versions of weights, in words; None where nothing
    does."""
    told = {"lags": "the lag of every token", "rewards": "the reward of every response"}
    needed = [words for need, words in told.items() if need in method.needs]
    return f"{method.name} needs {' and '.join(needed)}" if needed else None
