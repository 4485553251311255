"""Recurrences of products in one kernel: the blocks of a cluster keep the weights and exchange the state."""
