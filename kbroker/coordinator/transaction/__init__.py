"""The parts of the transaction coordinator that exist: the blocks of producer ids, and the decisions (`core`)."""
