# Escrow, from the locks, for Kafka mode and embedded mode alike. `docker build -t escrow:local .`
#
# Everything that comes from elsewhere is named exactly: images by version (by digest, if you set these two: docs/security.md),
# jars and Python packages by hash, pip and the build backend among them. Debian's packages are signed; apt checks that.
ARG MAVEN_IMAGE=maven:3.9.16-eclipse-temurin-17
ARG PYTHON_IMAGE=python:3.12.16-slim-bookworm

# Spark's Kafka connector: jars, as streaming/spark/kafka-pom.xml has them; each is the one that the lock names, and there is no other.
FROM ${MAVEN_IMAGE} AS jars
COPY streaming/spark/kafka-pom.xml streaming/spark/kafka-pom.lock /build/
RUN mvn -B -q -f /build/kafka-pom.xml org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory=/jars \
    && cd /jars && LC_ALL=C sh -c 'sha256sum -- *.jar' | diff /build/kafka-pom.lock -

# What is no wheel yet (PySpark, Escrow itself) is built by the setuptools of the lock: --no-build-isolation, or pip would fetch
# the newest one. The environment has neither pip nor setuptools in it; these stay behind in this stage.
FROM ${PYTHON_IMAGE} AS packages
COPY requirements /requirements
RUN pip install --no-cache-dir --require-hashes -r /requirements/build.lock
RUN pip wheel --no-cache-dir --no-build-isolation --require-hashes --wheel-dir /wheels \
        -r /requirements/server.lock -r /requirements/kafka.lock
COPY . /src
RUN pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels /src/sdk /src \
    && python -m venv --without-pip /opt/escrow/python \
    && pip --python /opt/escrow/python/bin/python install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM ${PYTHON_IMAGE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=packages /opt/escrow/python /opt/escrow/python
COPY --from=jars /jars /opt/escrow/jars

# A new volume takes its owner from here.
RUN useradd --system --uid 10001 --create-home escrow && install --directory --owner escrow /var/lib/escrow /run/escrow
USER 10001
WORKDIR /var/lib/escrow
ENV PATH=/opt/escrow/python/bin:$PATH
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
