"""The transaction coordinator, and the blocks of producer ids."""
