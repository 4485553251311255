"""How values between kernels lie in memory: as pieces of one array, narrow, as bits, few at a time."""
