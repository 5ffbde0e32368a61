"""The client's network: one connection per broker and channel, and the cluster that routes requests to them."""
