"""MirrorMaker: bridges two clusters batch by batch."""
