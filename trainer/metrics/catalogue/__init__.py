"""The catalogue: every number that is measured, declared once. Standard library only, and nothing about how it is drawn."""
