"""The pure rules of cluster metadata: topic names and sizes, replica assignment, config entries."""
