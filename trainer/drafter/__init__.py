"""Features in, optimizer steps and checkpoints of the drafter out."""
