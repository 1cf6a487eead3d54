"""The streaming room. Here today: `settle`, the body that the Spark job will run for each micro-batch."""
