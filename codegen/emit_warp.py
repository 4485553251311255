"""Emitters of warp-wide ops: shuffles and matrix fragments (CUDA only)."""
