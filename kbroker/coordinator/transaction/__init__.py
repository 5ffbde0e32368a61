"""The part of the transaction coordinator that exists: the blocks of producer ids."""
