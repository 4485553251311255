"""Writing of thread-level programs: addresses, tiles, staging in shared memory."""
