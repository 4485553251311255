"""The protocols of devices, of plans loaded on them and of their queues."""
