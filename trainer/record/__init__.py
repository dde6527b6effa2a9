"""The files of a run: the format of its lines, the writer and the reader, and what a run was made with."""
