"""Passes that give each of several devices its part of a network, with explicit communication."""
