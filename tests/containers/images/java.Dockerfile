# What both servers need: a Java, their jars, nc for the health check of ZooKeeper.
FROM localhost/base:bookworm
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends netcat-openbsd && rm -rf /var/lib/apt/lists/*
COPY java /opt/java
COPY jars /opt/jars
ENV PATH=/opt/java/bin:$PATH
