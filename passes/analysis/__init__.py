"""Facts that passes derive from a program: index sets, row phases, extents, constant parameters."""
