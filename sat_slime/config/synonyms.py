"""What other projects call our settings: words of slime's flags, verl, TRL and papers, and the settings that they are.

A word stands at the end of a key that is unknown here, wherever it was written.
"""

from __future__ import annotations

_RADII = ("method.clip.eps_low", "method.clip.eps_high")

SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("eps", "epsilon", "eps_clip", "clip_eps", "clip_range", "cliprange", "clip_ratio"), _RADII),
    **dict.fromkeys(("clip_ratio_low", "eps_clip_low", "epsilon_low"), _RADII[:1]),
    **dict.fromkeys(("clip_ratio_high", "eps_clip_high", "epsilon_high"), _RADII[1:]),
    **dict.fromkeys(("eps_clip_c", "clip_ratio_c"), ("method.clip.dual",)),
    **dict.fromkeys(("learning_rate", "actor_lr"), ("train.lr",)),
    **dict.fromkeys(("kl_loss_coef", "beta"), ("loss.kl_coef",)),
    **dict.fromkeys(("clip_grad", "max_grad_norm"), ("train.grad_clip",)),
    **dict.fromkeys(("update_weights_interval", "staleness", "async_steps"), ("pipeline.lag",)),
    **dict.fromkeys(("num_rollout", "max_steps", "total_steps", "num_steps"), ("pipeline.iterations",)),
    **dict.fromkeys(("n_samples_per_prompt", "num_generations", "group_size"), ("rollout.samples_per_prompt",)),
    **dict.fromkeys(("rollout_batch_size", "train_batch_size"), ("rollout.prompts_per_iteration",)),
    **dict.fromkeys(("max_new_tokens", "max_tokens", "rollout_max_response_len"), ("rollout.max_response_tokens",)),
}
