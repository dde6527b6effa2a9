"""Prompts in, conversations with the target's own answers out."""
