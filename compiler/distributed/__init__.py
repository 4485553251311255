"""One program on several processes: dividing a network, starting processes, running and failing together."""
