#!/bin/sh
# Puts Spark's connector to Kafka among Spark's own jars, so that jobs download nothing:
#
#     sh connectors/spark/common/install_jars.sh PYTHON [--lock]
#
# PYTHON is the interpreter that has the package with the extra spark. Spark's resolver fetches the
# jars, and one with another hash than jars.lock says ends this. --lock writes jars.lock anew.
set -eu
python=$1
lock=$(cd "$(dirname "$0")" && pwd)/jars.lock
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
folder=$("$python" -c '
import sys
from connectors.spark.common.session import PACKAGES, open_session, spark_folder
conf = {"spark.jars.packages": ",".join(PACKAGES), "spark.jars.ivy": sys.argv[1]}
open_session("jars", master="local[1]", conf=conf).stop()
print(spark_folder())
' "$scratch")
cd "$scratch/jars"
if [ "${2-}" = --lock ]; then
    # What PySpark brings itself has no group in its name.
    for jar in *.jar; do [ -e "$folder/${jar#*_}" ] || sha256sum "$jar"; done > "$lock"
else
    sha256sum --check --strict --quiet "$lock"
    cut -c 67- "$lock" | xargs -I {} cp {} "$folder/"
fi
