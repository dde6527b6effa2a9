"""Grafana's dashboards, generated from the catalogue, with Prometheus rules and provisioning."""
