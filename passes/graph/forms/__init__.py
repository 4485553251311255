"""The form in which a network is compiled: shapes of its inputs, constants that become state, training."""
