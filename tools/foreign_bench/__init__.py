"""The suite `foreign`, timed: networks that nobody tunes for, beside PyTorch at several batches."""
