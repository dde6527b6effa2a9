"""Reads the records of runs: tables of their numbers, and curves that lose no spike however long a run is."""
