"""The trainer: a model of megatron-core, what it computes with, and the warm-up that makes their first weights."""
