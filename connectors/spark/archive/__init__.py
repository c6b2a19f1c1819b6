"""Archives records of a delay service as Parquet, to audit them after Kafka has deleted them."""

from connectors.spark.archive.reading import ARCHIVE, Archive, audit_archive
from connectors.spark.archive.run import ArchiveOptions, start_archive

__all__ = ["ARCHIVE", "Archive", "ArchiveOptions", "audit_archive", "start_archive"]
