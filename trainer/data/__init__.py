"""Datasets and prompts, read and turned into batches of tokenised conversations."""
