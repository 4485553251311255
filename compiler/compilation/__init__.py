"""The compile path below the public functions: lowering, kernel builds, the plan, records for reports."""
