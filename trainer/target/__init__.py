"""A name in, the frozen target and its features out."""
