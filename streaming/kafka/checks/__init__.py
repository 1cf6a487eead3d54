"""Check requests of Kafka mode, as the driver sees them: which groups are live, and which requests a member has taken."""
