"""Settlement without Spark: the body of a batch, check rounds, waiting for disk room. From outside: every module."""
