"""Caffe2's `data_parallel_model`, and the stores at which its shards meet."""
