"""Tables in files: CSV, JSON lines, Parquet, Arrow and TFRecord (docs/design/0093)."""
