"""Passes that divide a network between devices: what each rank computes and sends."""
