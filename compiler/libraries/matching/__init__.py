"""Matchers: the parts of a kernel that a vendor library computes, as its problems."""
