"""Consumer groups as state machines: membership, generations, assignments, committed offsets. No I/O, no clock."""
