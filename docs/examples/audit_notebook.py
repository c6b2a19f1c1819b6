"""Audit of an archive in a notebook, by the functions of the audit for Spark data frames.

Cells begin at `# %%`. It runs in any Spark session, also by Spark Connect:

    python docs/examples/audit_notebook.py delay-archive
"""

# %%
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from connectors.spark.archive import Archive
from connectors.spark.audit import findings
from connectors.spark.ledger import ledger

spark = SparkSession.builder.getOrCreate()

# %% Any table with the columns of `connectors.spark.archive.ARCHIVE` would do.
archive = Archive(sys.argv[1])
cut, evidence = archive.cut()
records = archive.read(spark)
is_source = sf.col("topic").isin(*cut.delay_topics)

# %% What each record asks for, and what settles it.
rows = ledger(records.where(is_source), records.where(~is_source), cut).persist()
rows.groupBy("role", "kind").count().show()
rows.drop("row").show(5, truncate=False)

# %% What is wrong, and what could not be judged.
found = findings(rows, cut, evidence)
found.groupBy("is_finding", "kind").count().orderBy("kind").show()
found.where("is_finding").select("kind", "topic", "partition", "offset", "detail").show(
    truncate=False
)
