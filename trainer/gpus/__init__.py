"""GPU libraries in, figures of each GPU out."""
