"""The files of a run in, tables and curves that lose no spike out."""
