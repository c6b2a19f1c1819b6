# Stands for the image of Python: Debian's Python under the names of that image. Certificates and
# settings of pip are the machine's, so that a build finds packages as the machine itself does.
FROM localhost/base:bookworm
RUN ln -s /usr/bin/python3.11 /usr/local/bin/python && ln -s /usr/bin/python3.11 /usr/local/bin/python3
COPY ca.crt /etc/ssl/certs/ca-certificates.crt
COPY pip.conf /etc/pip.conf
