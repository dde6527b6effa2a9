"""A run's files: steps, telemetry ticks and events in, append-only JSON lines out, and back again."""
