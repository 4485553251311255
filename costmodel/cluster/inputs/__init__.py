"""The inputs of a plan: clusters, models and trainings, from files or from networks."""
