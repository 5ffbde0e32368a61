"""The identity of a connection: the broker proof and the secret behind it."""
