"""What several parts of the broker share: work in turns of the reactor, epoch fences."""
