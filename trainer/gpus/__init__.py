"""GPU libraries in; figures of each GPU, as snapshots and metrics, out."""
