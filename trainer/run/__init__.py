"""A run: checked before it begins, its folder and identity, its start and its checkpoints."""
