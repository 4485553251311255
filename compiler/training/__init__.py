"""Training steps: losses, optimizers and schedules as graph code, and what joins them to one module."""
