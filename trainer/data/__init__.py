"""Datasets and prompts in, batches of tokenised conversations out."""
