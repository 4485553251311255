"""What a plan is made of: clusters, models and trainings, from files or from networks."""
