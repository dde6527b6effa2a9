"""The catalogue: every metric, declared once. Standard library only; nothing about how metrics are drawn."""
