# Escrow, from the locks, for Kafka mode and embedded mode alike. `docker build -t escrow:local .`

# Spark's Kafka connector: jars, as streaming/kafka-pom.xml has them.
FROM maven:3.9.9-eclipse-temurin-17 AS jars
COPY streaming/kafka-pom.xml /build/pom.xml
RUN mvn -B -q -f /build/pom.xml dependency:copy-dependencies -DoutputDirectory=/jars

FROM python:3.12.8-slim-bookworm AS wheel
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12.8-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/server.lock requirements/kafka.lock /tmp/requirements/
RUN pip install --no-cache-dir --require-hashes -r /tmp/requirements/server.lock -r /tmp/requirements/kafka.lock
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps --no-index /tmp/wheels/*.whl && rm -rf /tmp/wheels /tmp/requirements
COPY --from=jars /jars /opt/escrow/jars

# A new volume takes its owner from here.
RUN useradd --system --uid 10001 --create-home escrow && install --directory --owner escrow /var/lib/escrow /run/escrow
USER 10001
WORKDIR /var/lib/escrow
ENV ESCROW_DATA_DIR=/var/lib/escrow ESCROW_KAFKA_JARS_DIR=/opt/escrow/jars PYTHONUNBUFFERED=1
VOLUME /var/lib/escrow
EXPOSE 7480 7482
STOPSIGNAL SIGTERM
# Ready: it accepts. (/readyz tells how the job is as well.)
HEALTHCHECK --interval=15s --timeout=5s --start-period=180s --retries=4 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7480/readyz', timeout=4)"]
# tini reaps what Spark leaves behind.
ENTRYPOINT ["tini", "--", "escrow"]
CMD ["run"]
