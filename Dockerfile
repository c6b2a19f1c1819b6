# The delay service as an image. It runs beside a broker: one node per broker, in the same pod or
# network namespace, so that the broker is on the loopback interface (docker-compose.yml shows it).
#
#   docker build -t delayservice .
#   docker run --read-only --tmpfs /tmp -v state:/var/lib/delayservice \
#     -v ./delayservice.toml:/etc/delayservice.toml:ro -e DELAYSERVICE_CONFIG=/etc/delayservice.toml \
#     --network=container:kafka \
#     delayservice
#
# The target `spark` is the Spark jobs (docs/spark.md): the same commands, with Java, PySpark and Spark's
# Kafka connector, so that a job starts without fetching anything.
#
#   docker build --target spark -t delayservice-spark .
#   docker run --rm -v audit:/var/lib/delayservice delayservice-spark \
#     spark audit --bootstrap kafka:9092 --out /var/lib/delayservice/audit
ARG BASE_IMAGE=python:3.11.13-slim-bookworm

FROM ${BASE_IMAGE} AS build

# Every package by its hash: what was tested is what runs, and nothing is compiled. One package, for
# logging in to ZooKeeper by SASL, comes as source only, which is Python: setuptools makes a wheel of
# it, as of the service.
COPY requirements /src/requirements
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes \
        -r /src/requirements/build.txt \
    && /opt/build/bin/pip wheel --no-cache-dir --no-build-isolation --require-hashes \
        --only-binary :all: --no-binary pure-sasl --wheel-dir /opt/wheels \
        -r /src/requirements/node.txt

COPY pyproject.toml README.md LICENSE /src/
COPY delayservice /src/delayservice
COPY connectors /src/connectors
COPY ha /src/ha
# The run-books, which the page shows.
COPY docs/operations.md /src/docs/operations.md
RUN /opt/build/bin/pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation \
        --wheel-dir /opt/wheels /src \
    && python -m venv /opt/delayservice \
    && /opt/delayservice/bin/pip install --no-cache-dir --no-index --no-deps /opt/wheels/*.whl

FROM ${BASE_IMAGE} AS runtime

# Fixed numbers, so that a volume's owner is known to Kubernetes (fsGroup: 10001). Volumes with the
# state and with secrets start out as these two folders are: empty, and the user's own.
RUN groupadd --system --gid 10001 delayservice \
    && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/delayservice --no-create-home \
        delayservice \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/delayservice \
    && install -d -o 10001 -g 10001 -m 0700 /etc/delayservice

# Nothing is written outside the volume, so the root file system may be read-only.
ENV PATH=/opt/delayservice/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DELAYSERVICE_NODE__STATE_DIR=/var/lib/delayservice

FROM runtime AS service
COPY --from=build /opt/delayservice /opt/delayservice
USER 10001:10001
WORKDIR /var/lib/delayservice
# An index of the Kafka log: losing it costs a rebuild, keeping it makes restarts fast.
VOLUME /var/lib/delayservice
# Metrics and status; admin API and page. Both listen on loopback unless they are told otherwise.
EXPOSE 9464 9465

# A first start reads the delay topics from their beginning, so it is given time.
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=3 \
    CMD ["delayservice", "status"]

# SIGTERM: transactions are finished, the stores synced, and the process ends by itself.
STOPSIGNAL SIGTERM
ENTRYPOINT ["delayservice"]
CMD ["run"]

FROM runtime AS java
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log

FROM java AS spark-build
COPY --from=build /opt/build /opt/build
COPY requirements /src/requirements
# PySpark comes as source only, which is Python around Spark's jars: a wheel is made of it.
RUN /opt/build/bin/pip wheel --no-cache-dir --no-build-isolation --require-hashes --no-deps \
        --only-binary :all: --no-binary pyspark --wheel-dir /opt/spark-wheels \
        -r /src/requirements/spark.txt
COPY --from=build /opt/delayservice /opt/delayservice
# Spark itself fetches its connector to Kafka; what has another hash than the lock's is refused.
RUN /opt/delayservice/bin/pip install --no-cache-dir --no-index --no-deps /opt/spark-wheels/*.whl \
    && sh /opt/delayservice/lib/python3*/site-packages/connectors/spark/common/install_jars.sh \
        /opt/delayservice/bin/python
# Left out, about 240 MB: examples and tests; parts that no job uses (Spark Connect, its shell, state
# stores in RocksDB, Arrow's Flight). `make containers` runs every job with what is left.
RUN cd /opt/delayservice/lib/python3*/site-packages \
    && rm -rf pyspark/examples pyspark/data pyspark/jars/connect-repl pyspark/jars/spark-connect_* \
        pyspark/jars/rocksdbjni-* pyarrow/include pyarrow/*flight* \
    && find pandas numpy pyarrow pyspark -type d -name tests -prune -exec rm -rf {} +

FROM java AS spark
COPY --from=spark-build /opt/delayservice /opt/delayservice
USER 10001:10001
WORKDIR /var/lib/delayservice
# Results, and how far an audit that follows has come.
VOLUME /var/lib/delayservice
# SIGTERM: a job that follows ends after the cut or comparison that is under way.
STOPSIGNAL SIGTERM
ENTRYPOINT ["delayservice"]
CMD ["spark", "--help"]

# What is built when no target is named.
FROM service
