"""Generators in, the same on threads of their own out, joined by bounded queues that measure themselves."""
