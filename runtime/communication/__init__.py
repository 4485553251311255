"""What several processes exchange while they run one program, and the engines that carry it."""
