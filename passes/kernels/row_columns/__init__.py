"""Walks along rows that also add up columns, part by part."""
