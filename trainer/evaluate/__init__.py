"""A trained drafter and prompts in, what it is worth out: acceptance length, speed, losslessness."""
