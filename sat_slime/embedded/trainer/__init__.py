"""The trainer: ranks of megatron-core, what they compute with, and the warm-up that makes their first weights."""
