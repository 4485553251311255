"""Pictures that commands draw: curves of training, the cluster model, swept configurations."""
