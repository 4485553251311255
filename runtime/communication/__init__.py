"""Messages between several processes that run one program, and the engines that carry them."""
