"""Check requests of Kafka mode: from the check topic to members that poll this endpoint."""
