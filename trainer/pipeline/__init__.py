"""Plain generators on threads of their own, joined by bounded queues; both measure themselves."""
