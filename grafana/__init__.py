"""The catalogue in, Grafana's dashboards out."""
