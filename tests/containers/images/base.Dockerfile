# Stands for the image of Python: Debian's Python under the names of that image. Certificates and
# settings of pip are the machine's, so that a build finds packages as the machine itself does. Java
# takes its certificates from those of Debian, so they are among these.
FROM localhost/base:bookworm
RUN ln -s /usr/bin/python3.11 /usr/local/bin/python && ln -s /usr/bin/python3.11 /usr/local/bin/python3
COPY certificates /usr/local/share/ca-certificates
RUN update-ca-certificates
COPY ca.crt /etc/ssl/certs/ca-certificates.crt
COPY pip.conf /etc/pip.conf
