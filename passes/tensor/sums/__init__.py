"""How sums, running folds and updates are computed: in parts, sorted by target, in the rows that change."""
