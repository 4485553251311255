"""Products of a batch whose columns are gates of units: a kernel computes the maps that combine them, too."""
