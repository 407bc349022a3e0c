"""Raw folders of synthetic data sets, one file per data set: schema-faithful, with a planted and documented signal."""
