# The delay service as an image. It runs beside a broker: one node per broker, in the same pod or
# network namespace, so that the broker is on the loopback interface (docker-compose.yml shows it).
#
#   docker build -t delayservice .
#   docker run --read-only --tmpfs /tmp -v state:/var/lib/delayservice \
#     -v ./delayservice.toml:/etc/delayservice.toml:ro -e DELAYSERVICE_CONFIG=/etc/delayservice.toml \
#     --network=container:kafka \
#     delayservice
FROM python:3.11.13-slim-bookworm AS build

# Wheels, and every one by its hash: what was tested is what runs, and nothing is compiled. One
# package comes as source only, which is Python.
COPY requirements/run.txt /src/requirements/run.txt
RUN python -m venv /opt/delayservice \
    && /opt/delayservice/bin/pip install --no-cache-dir --only-binary :all: \
        --no-binary pure-sasl --require-hashes -r /src/requirements/run.txt

COPY pyproject.toml README.md /src/
COPY requirements /src/requirements
COPY delayservice /src/delayservice
COPY connectors /src/connectors
COPY ha /src/ha
RUN /opt/delayservice/bin/pip install --no-cache-dir --no-deps /src

FROM python:3.11.13-slim-bookworm

# A fixed number, so that a volume's owner is known to Kubernetes (fsGroup: 10001). Volumes with the
# state and with secrets start out as these two folders are: the user's own.
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/delayservice --create-home \
        delayservice \
    && install -d -o 10001 -g 10001 -m 0700 /etc/delayservice
COPY --from=build /opt/delayservice /opt/delayservice

# Nothing is written outside the volume, so the root file system may be read-only.
ENV PATH=/opt/delayservice/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DELAYSERVICE_NODE__STATE_DIR=/var/lib/delayservice
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
