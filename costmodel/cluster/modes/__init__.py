"""The modes of the cluster model: configurations, their seconds and bytes, and the search over them."""
