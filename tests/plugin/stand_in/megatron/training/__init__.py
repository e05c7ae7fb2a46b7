"""Stands for Megatron-LM's checkout."""
