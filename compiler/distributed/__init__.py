"""One program on several processes: dividing a network, starting the processes, running and failing together."""
