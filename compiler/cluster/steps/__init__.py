"""Plans of training steps: the ways to divide one over devices, priced and executed, or streamed by one."""
