"""The monitor's status in, HTTP out: /status, /metrics, /events, /control."""
