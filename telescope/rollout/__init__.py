"""Samplers: prompts in, sampled token ids and their log-probs out."""
