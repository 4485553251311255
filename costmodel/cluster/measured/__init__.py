"""Measured training steps that come with Tilewright, and a model in device memory that is fitted to them."""
