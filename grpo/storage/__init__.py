"""Storage: object stores, atomic files, locks, databases, credentials, JSON documents and the home folder."""
