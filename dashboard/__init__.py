"""The process that draws: a folder of run records in, a live page out."""
