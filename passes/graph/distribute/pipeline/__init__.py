"""Division of a network's layers into the stages of a pipeline."""
