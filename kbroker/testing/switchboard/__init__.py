"""A proxy for the connections of a cluster, which cuts, delays and resets them."""
