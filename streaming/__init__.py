"""The Spark job: source, the body of a micro-batch, check rounds, Kafka mode. From outside: `job`."""
