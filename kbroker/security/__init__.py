"""Who a connection is: the pure part. The proof by which one broker of a cluster knows another."""
