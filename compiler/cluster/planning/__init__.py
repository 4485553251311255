"""From a network and a record to a plan: how it may be divided, and what each division costs."""
