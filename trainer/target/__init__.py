"""The frozen target: found by name, loaded, and run over batches to extract features."""
