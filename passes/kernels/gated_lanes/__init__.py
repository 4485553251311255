"""Products of float32 with the gates of their units, on the lanes of a GPU."""
