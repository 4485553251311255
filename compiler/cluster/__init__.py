"""Execution of a planned cluster configuration and measurement of the machine it runs on."""
