"""The mechanics that importers of every format share: calls, rules, emitted ops, findings."""
