"""The drafter: its model, its loss, its training step, its checkpoints."""
