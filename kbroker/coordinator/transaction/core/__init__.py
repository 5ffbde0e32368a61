"""The decisions of the transaction coordinator: no I/O, no clock."""
