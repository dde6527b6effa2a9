"""What the run does in; its state, its verdict and everything that is shown of it out."""
