"""The job in Kafka mode. From outside: `service`."""
