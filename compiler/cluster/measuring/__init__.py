"""What ranks measure: the machine they run on, and the components of a run."""
