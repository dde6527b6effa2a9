"""A run's record in, the same numbers in TensorBoard or W&B out, from a process of their own."""
