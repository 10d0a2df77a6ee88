"""The flags that all drivers share, and their configuration: TensorFlow 1 and the original Parallax."""

import parallax
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_string("resource_info_file", "resource_info", "hosts and their devices")
flags.DEFINE_boolean("sync", True, "workers wait for each other")
flags.DEFINE_integer("max_steps", 10, "steps to train")
flags.DEFINE_string("data_dir", "data", "where the training data is")
flags.DEFINE_string("run_option", "HYBRID", "PS, MPI or HYBRID")
flags.DEFINE_string("protocol", "grpc", "how workers and servers talk")
flags.DEFINE_boolean("replicate_variables", True, "each device keeps a copy of dense variables")
flags.DEFINE_boolean("local_aggregation", True, "add gradients within a machine first")
flags.DEFINE_boolean("boundary_among_servers", True, "optimize placement among servers")
flags.DEFINE_boolean("boundary_between_workers_and_servers", True, "optimize placement between both")
flags.DEFINE_boolean("use_allgatherv", False, "allgatherv of Open MPI")
flags.DEFINE_string("mpirun_options", "", "more options of mpirun")
flags.DEFINE_string("ckpt_dir", "ckpt", "where checkpoints are")
flags.DEFINE_integer("save_ckpt_steps", 5, "steps between checkpoints")
flags.DEFINE_string("redirect_path", None, "where logs are")
flags.DEFINE_string("profile_dir", None, "where profiles are")
flags.DEFINE_string("profile_steps", "", "steps to profile, separated by commas")
flags.DEFINE_integer("partitions", 2, "pieces of an embedding at least")
flags.DEFINE_boolean("search_partitions", False, "search the number of pieces")
FLAGS = flags.FLAGS


def build_config():
    ps = parallax.PSConfig(
        replicate_variables=FLAGS.replicate_variables,
        protocol=FLAGS.protocol,
        local_aggregation=FLAGS.local_aggregation,
        boundary_among_servers=FLAGS.boundary_among_servers,
        boundary_between_workers_and_servers=FLAGS.boundary_between_workers_and_servers,
    )
    mpi = parallax.MPIConfig(use_allgatherv=FLAGS.use_allgatherv, mpirun_options=FLAGS.mpirun_options)
    config = parallax.Config()
    config.run_option = FLAGS.run_option
    config.average_sparse = False
    config.search_partitions = FLAGS.search_partitions
    config.redirect_path = FLAGS.redirect_path
    config.communication_config = parallax.CommunicationConfig(ps, mpi)
    config.ckpt_config = parallax.CheckPointConfig(ckpt_dir=FLAGS.ckpt_dir, save_ckpt_steps=FLAGS.save_ckpt_steps)
    config.profile_config = parallax.ProfileConfig(
        profile_dir=FLAGS.profile_dir, profile_steps=[int(step) for step in FLAGS.profile_steps.split(",") if step]
    )
    return config
