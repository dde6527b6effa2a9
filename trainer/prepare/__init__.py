"""Training data from prompts: conversations whose answers are the target's own."""
