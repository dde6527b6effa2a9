"""A config in, a checked plan and a run's folder with its checkpoints out."""
