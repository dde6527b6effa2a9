"""The run record in; the same numbers in TensorBoard or W&B out, each from a process of its own."""
