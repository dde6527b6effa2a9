"""The web app: shows the runs of a folder live, from their records."""
