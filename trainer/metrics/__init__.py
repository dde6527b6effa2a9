"""Numbers that are measured: their one declaration, and how Prometheus and people get them."""
