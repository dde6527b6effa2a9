"""Pages for people, and what makes the generated ones."""
