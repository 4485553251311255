"""Ops in rows of their results on several ranks: how each op runs, and the module of one rank."""
