"""From a URI or an in-memory object to decoded media: resolve, fetch (under a policy), load, sniff, decode."""
