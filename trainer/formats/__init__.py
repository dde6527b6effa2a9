"""Trained drafters, loaded by name and written as folders that other programs load."""
